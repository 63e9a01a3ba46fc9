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
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Module returns the directory of a module that hack/kinds/go.mod pins.
func Module(ctx context.Context, root, module string) (string, error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	download.Dir, download.Stderr = filepath.Join(root, "hack", "kinds"), os.Stderr
	out, err := download.Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w", module, err)
	}
	var of struct{ Dir string }
	err = json.Unmarshal(out, &of)
	return of.Dir, err
}

// Definition returns the CustomResourceDefinition with a name from a file of a module that hack/kinds/go.mod pins.
func Definition(ctx context.Context, root, module, path, name string) ([]byte, error) {
	dir, err := Module(ctx, root, module)
	if err != nil {
		return nil, err
	}
	all, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(path)))
	if err != nil {
		return nil, err
	}
	for text := range bytes.SplitSeq(all, []byte("\n---\n")) {
		if bytes.Contains(text, []byte("\n  name: "+name+"\n")) {
			return text, nil
		}
	}
	return nil, fmt.Errorf("%s of %s has no %s", path, module, name)
}
