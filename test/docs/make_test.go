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

package docs

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestMake checks that make test fails if one of its parallel parts fails, even long before the end-to-end suite ends.
func TestMake(t *testing.T) {
	if testing.Short() {
		t.Skip("runs make")
	}
	for name, fails := range map[string]string{
		"nothing": "", "packages": "TEST_PACKAGES", "tools": "TEST_TOOLS", "modules": "TEST_MODULES", "the end-to-end suite": "E2E",
		"the monitoring": "MONITORING", "the controllers of other kinds": "KINDS",
	} {
		t.Run(name+" fails", func(t *testing.T) {
			t.Parallel()
			args := []string{"-C", "../..", "-o", "build", "-o", "controlplane", "-o", "bin/gotestsum", "test", "REPORTS=" + t.TempDir()}
			for _, tests := range []string{"TEST_PACKAGES", "TEST_TOOLS", "TEST_MODULES", "E2E", "MONITORING", "KINDS"} {
				run := "echo '{}'"
				if tests == "E2E" {
					run = "sleep 2"
				}
				if tests == fails {
					run += "; false"
				}
				args = append(args, tests+"="+run)
			}
			cmd := exec.CommandContext(t.Context(), "make", args...)
			cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "MAKE") || strings.HasPrefix(e, "MFLAGS=") })
			out, err := cmd.CombinedOutput()
			if (err != nil) != (fails != "") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
