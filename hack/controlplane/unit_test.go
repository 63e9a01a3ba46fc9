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

package controlplane

import (
	"bufio"
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// childEnv makes this test binary the parent in TestChildrenEndWithTheirParent.
const childEnv = "CONTROLPLANE_TEST_PARENT_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		os.Exit(parentOfTail(dir))
	}
	os.Exit(m.Run())
}

func TestBrokenImage(t *testing.T) {
	pattern := regexp.MustCompile(brokenImage)
	for image, want := range map[string]bool{
		"busybo":                          true,
		"busybo:1":                        true,
		"docker.io/library/busybo:latest": true,
		"registry:5000/busybo":            true,
		"registry:5000/team/busybo:v1@sha256:0123": true,
		"busybo@sha256:0123":                       true,
		"busybox":                                  false,
		"busybox:1":                                false,
		"notbusybo":                                false,
		"docker.io/library/busybox:busybo":         false,
		"busybo/app":                               false,
		"busybo:5000/app:1":                        false,
		"nginx":                                    false,
	} {
		if got := pattern.MatchString(image); got != want {
			t.Errorf("%s broken: %t, want %t", image, got, want)
		}
	}
}

// stageDoc has the tested fields of a Stage.
type stageDoc struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		ResourceRef struct {
			Kind string `json:"kind"`
		} `json:"resourceRef"`
		Steps []struct {
			Patch *struct {
				Subresource string `json:"subresource"`
				Type        string `json:"type"`
				Template    string `json:"template"`
			} `json:"patch"`
		} `json:"steps"`
	} `json:"spec"`
}

func TestStages(t *testing.T) {
	config, err := kwokConfig()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, part := range bytes.Split(config, []byte("\n---\n")) {
		var doc stageDoc
		if err := yaml.Unmarshal(part, &doc); err != nil {
			t.Fatalf("%v in:\n%s", err, part)
		}
		if doc.Kind == "KwokConfiguration" {
			continue
		}
		name := doc.Metadata.Name
		if doc.Kind != "Stage" || name == "" || seen[name] {
			t.Errorf("kind %q with name %q (seen: %t)", doc.Kind, name, seen[name])
		}
		seen[name] = true
		for _, step := range doc.Spec.Steps {
			if step.Patch == nil || doc.Spec.ResourceRef.Kind != "Pod" {
				continue
			}
			// See the comment on pod-sync.
			if step.Patch.Type != "strategic" || step.Patch.Subresource != "status" ||
				!strings.Contains(step.Patch.Template, "resourceVersion: {{ .metadata.resourceVersion") {
				t.Errorf("stage %s does not patch the status with a resource version, strategically", name)
			}
		}
	}
	if !seen["pod-sync"] || !seen["node-initialize"] {
		t.Errorf("stages missing: %v", seen)
	}
}

func TestStagesKnowTheBrokenImage(t *testing.T) {
	config, err := kwokConfig()
	if err != nil {
		t.Fatal(err)
	}
	literals := regexp.MustCompile("(?:test\\(\"|pattern := `)([^\"`]*)").FindAllStringSubmatch(string(config), -1)
	if len(literals) < 5 {
		t.Errorf("found %d patterns, want one for each stage that starts a pod", len(literals))
	}
	for _, literal := range literals {
		if diff := cmp.Diff(brokenImage, literal[1]); diff != "" {
			t.Errorf("pattern in a stage (-want +got):\n%s", diff)
		}
	}
}

// TestPodAddresses: the operator calls the addresses that stand for pods.
func TestPodAddresses(t *testing.T) {
	addresses := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	got := called(t.Context(), addresses(
		"127.0.0.1", "::1", "169.254.1.1", "fe80::1", "fe80::1%eth0", "192.0.2.2", "100.100.100.200", "8.8.8.8", "fd00::2", "10.1.2.3",
	))
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if diff := cmp.Diff(addresses("10.1.2.3", "fd00::2", "8.8.8.8"), got, same); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func TestFreePorts(t *testing.T) {
	ports, err := freePorts(20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] || port < 1024 {
			t.Errorf("port %d of %v", port, ports)
		}
		seen[port] = true
		if first := ephemeralStart(); first > lowestPort+1000 && port >= first {
			t.Errorf("port %d is in the kernel's range for clients, from %d on", port, first)
		}
	}
	if len(seen) != 20 {
		t.Errorf("%d ports, want 20", len(seen))
	}
}

// tailProgram returns the path of tail, which runs until it is killed.
func tailProgram(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("tail")
	if err != nil {
		t.Skip("no tail on this machine")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestChildrenEndWithTheirParent kills a process that has started a component, so that it
// cannot clean up.
func TestChildrenEndWithTheirParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends children with their parent")
	}
	program := tailProgram(t)
	dir := t.TempDir()
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	runs := func() bool {
		exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
		return err == nil && exe == program // a zombie has no program
	}
	if !runs() {
		t.Fatalf("process %d is not the component", pid)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed
	eventually(t, 10*time.Second, func() error {
		if runs() {
			return errors.New("the component outlives its parent")
		}
		return nil
	})
}

// parentOfTail starts a component as a control plane does, prints its pid and waits.
func parentOfTail(dir string) int {
	program, err := exec.LookPath("tail")
	if err != nil {
		return 1
	}
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o750); err != nil {
		return 1
	}
	s := newSupervisor(dir)
	p, err := s.start("tail", program, []string{"-f", s.logPath("tail")})
	if err != nil {
		return 1
	}
	_, _ = os.Stdout.WriteString(strconv.Itoa(p.cmd.Process.Pid) + "\n")
	<-p.done
	return 0
}

func TestSupervisorStops(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o750); err != nil {
		t.Fatal(err)
	}
	s := newSupervisor(dir)
	p, err := s.start("stubborn", "/bin/sh", []string{"-c", "trap '' TERM; echo armed; while :; do sleep 0.1; done"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.start("stubborn", "/bin/sh", nil); err == nil {
		t.Error("two processes of one name")
	}
	eventually(t, 10*time.Second, func() error {
		if !strings.Contains(s.logTail("stubborn"), "\narmed") {
			return errors.New("not armed yet")
		}
		return nil
	})
	if err := s.stopAll(100*time.Millisecond, []string{"absent"}); err != nil {
		t.Fatal(err)
	}
	if !p.exited() {
		t.Error("the process was not waited for")
	}
	if err := syscall.Kill(p.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
	if _, err := s.start("late", "/bin/sh", nil); err == nil {
		t.Error("a stopped supervisor started something")
	}
}

// eventually calls check until it returns nil.
func eventually(t *testing.T, timeout time.Duration, check func() error) {
	t.Helper()
	ctx := t.Context()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", timeout, err)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}
