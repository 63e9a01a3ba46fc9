//go:build linux

/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodes

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies returns the directories of cgroups: one, or one for each controller
// with cgroups of version 1.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, nil
	}
	found, err := filepath.Glob(cgroupRoot + "/*/cgroup.procs")
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	return found, err
}

// makeCgroup creates the cgroup of a node in the cgroup of its cluster.
func makeCgroup(cluster, node string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		for at, names := root, []string{cluster, node}; len(names) > 0; names = names[1:] {
			// Version 2: children may use the controllers.
			if controllers, err := os.ReadFile(filepath.Join(at, "cgroup.controllers")); err == nil {
				for _, name := range bytes.Fields(controllers) {
					// It fails for some controllers.
					_ = os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), slices.Concat([]byte("+"), name), 0)
				}
			}
			parent := at
			at = filepath.Join(at, names[0])
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			// Version 1: a new cgroup has no CPUs and no memory nodes.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if data, err := os.ReadFile(filepath.Join(parent, file)); err == nil && root != cgroupRoot {
					_ = os.WriteFile(filepath.Join(at, file), bytes.TrimSpace(data), 0) // only cpuset has them
				}
			}
		}
	}
	return nil
}

// removeCgroups removes a cgroup and its children, after their processes are gone.
func removeCgroups(path string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	// Killed processes leave their cgroup a little later.
	tooLong := time.After(10 * time.Second)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for len(roots) > 0 {
		err := removeCgroup(filepath.Join(roots[0], path))
		if err == nil {
			roots = roots[1:]
			continue
		}
		select {
		case <-tooLong:
			return err
		case <-tick.C:
		}
	}
	return nil
}

func removeCgroup(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeCgroup(filepath.Join(path, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}
