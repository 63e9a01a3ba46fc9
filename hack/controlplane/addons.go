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
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// addOns are the modules that define third-party kinds that our manifests use, pinned
// in hack/addons, and the files of the kinds.
var addOns = map[string][]string{
	"github.com/cert-manager/cert-manager": {
		"deploy/crds/cert-manager.io_certificates.yaml",
		"deploy/crds/cert-manager.io_issuers.yaml",
	},
	"github.com/prometheus-operator/prometheus-operator": {
		"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
		"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
	},
}

// InstallAddOnKinds installs the kinds of cert-manager and of the Prometheus
// Operator, so that the API server validates their objects. No controller acts on
// these objects.
func (c *ControlPlane) InstallAddOnKinds(ctx context.Context, root string) error {
	wait := []string{"wait", "--for=condition=Established", "--timeout=60s"}
	for module, files := range addOns {
		dir, err := moduleDir(ctx, filepath.Join(root, "hack", "addons"), module)
		if err != nil {
			return err
		}
		for _, file := range files {
			path := filepath.Join(dir, filepath.FromSlash(file))
			if err := c.ApplyFiles(ctx, path); err != nil {
				return err
			}
			wait = append(wait, "--filename="+path)
		}
	}
	if out, err := c.KubectlCmd(ctx, wait...).CombinedOutput(); err != nil {
		return fmt.Errorf("wait for the kinds of the add-ons: %w\n%s", err, out)
	}
	return nil
}

// moduleDir returns the directory with the source of a module that the module in a
// directory requires. It downloads the source if it is missing.
func moduleDir(ctx context.Context, in, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = in
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	// The output has the error.
	var found struct{ Dir, Error string }
	if decodeErr := json.NewDecoder(bytes.NewReader(out)).Decode(&found); decodeErr != nil && !errors.Is(decodeErr, io.EOF) {
		return "", fmt.Errorf("go mod download %s: %w", module, decodeErr)
	}
	if err != nil || found.Dir == "" {
		return "", fmt.Errorf("go mod download %s in %s: %s: %w", module, in, found.Error, err)
	}
	return found.Dir, nil
}
