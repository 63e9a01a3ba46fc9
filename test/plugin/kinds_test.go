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

package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/traas-stack/altershield-operator/internal/plugin"
)

// native is the StatefulSet or DaemonSet of a test; named is its name in commands.
type native struct {
	*place
	kind, named string
}

func (n *native) apply(spec string) {
	n.Helper()
	path := filepath.Join(n.TempDir(), "db.yaml")
	manifest := fmt.Sprintf(`
apiVersion: apps/v1
kind: %s
metadata: {name: db}
spec:
  %s
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: "busybox:1"}]
`, n.kind, spec)
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		n.Fatal(err)
	}
	n.kubectl("apply", "-f", path)
}

func (n *native) releases(image string) {
	n.Helper()
	n.kubectl("set", "image", strings.ToLower(n.kind)+"/db", "main="+image)
}

// field reads a field of the workload.
func (n *native) field(path string) string {
	n.Helper()
	return n.kubectl("get", strings.ToLower(n.kind), "db", "-o", "jsonpath={"+path+"}")
}

// finished returns the first pod of the current release that is in a batch.
func (n *native) finished() (pod string) {
	n.Helper()
	n.until("a pod is in a batch", func() error {
		var st plugin.Status
		if err := json.Unmarshal([]byte(n.output("status", n.named, "-o", "json")), &st); err != nil {
			return err
		}
		if len(st.Releases) == 0 || st.Releases[0].Spec.Reversion != st.Version {
			return errors.New("the release is not recorded")
		}
		for _, p := range st.Revisions[0].Pods {
			if p.Batch > 0 && st.Revisions[0].Current {
				pod = p.Name
				return nil
			}
		}
		return errors.New("no pod is in a batch")
	})
	return pod
}

// follows runs the command of the next steps that contains want.
func (n *native) follows(want string) {
	n.Helper()
	var advised string
	n.until("status advises "+want, func() error {
		_, commands := n.explained(n.named)
		i := slices.IndexFunc(commands, func(command string) bool { return strings.Contains(command, want) })
		if i < 0 {
			return fmt.Errorf("status advises %q", commands)
		}
		advised = commands[i]
		return nil
	})
	// The command is a kubectl command with one word in quotes.
	words, quoted, _ := strings.Cut(strings.TrimPrefix(advised, "kubectl "), "'")
	patch, flags, _ := strings.Cut(quoted, "'")
	args := append(strings.Fields(words), patch)
	if _, err := kubectl(n.Context(), append(args, strings.Fields(flags)...)...); err != nil {
		n.Fatal(err)
	}
}

// TestStatefulSet handles a StatefulSet with a partition of its user by the plugin alone.
func TestStatefulSet(t *testing.T) {
	n := &native{begin(t, true), "StatefulSet", "sts/db"}
	n.apply("replicas: 3\n  serviceName: db\n  updateStrategy: {rollingUpdate: {partition: 2}}")
	n.ends(0, "sts/db")
	n.acts([]string{"status", "sts/db"}, "statefulset/db in "+n.namespace, "3 desired, 3 updated, 3 ready")

	n.releases("busybox:2")
	n.says([]string{"status", "sts/db"}, "partitioned")
	code, printed := n.waits("sts/db", "--timeout=3s")
	if code != 124 || !strings.Contains(printed, "A user's partition keeps pods at the previous version: 2 of 3 pods") {
		t.Errorf("wait of a partitioned release: exit code %d\n%s", code, printed)
	}
	n.acts([]string{"verdict", "fail", "sts/db", "--pod", "db-2", "-m", "find error"}, "pod db-2: fail", "release 2 is Suspend")
	n.ends(2, "statefulset/db")
	n.says([]string{"status", "db"}, "blocked, halted", "The operator halted the rollout (partition 2147483647)", "db-2")
	n.says([]string{"status"}, "statefulset/db")
	n.acts([]string{"history", "sts/db"}, "busybox:2", "busybox:1")
	n.acts([]string{"resume", "sts/db"})
	n.until("the annotation of the halt is removed", func() error {
		if left := n.field(".metadata.annotations"); strings.Contains(left, "/halted") {
			return errors.New(left)
		}
		return nil
	})

	n.acts([]string{"override", "sts/db", "--image", "main=busybox:3"}, "busybox:3")
	n.says([]string{"status", "sts/db"}, "partitioned")
	n.follows(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	n.ends(0, "sts/db")
	n.acts([]string{"rollback", "sts/db"}, "busybox:1")
	n.says([]string{"status", "sts/db"}, "quarantine")
	n.acts([]string{"enroll", "sts/db", "--mode=off"}, "statefulset/db")
	n.ends(6, "sts/db")
	n.acts([]string{"enroll", "sts/db"}, "statefulset/db")

	n.kubectl("create", "deployment", "db", "--image=busybox", "--replicas=0")
	n.denied([]string{"status", "db"}, "db is the name of 2 workloads", "deployment/db or statefulset/db")
	n.denied([]string{"rollback", "db"}, "db is the name of 2 workloads")
	out, _, _ := n.runWith(t.Context(), nil, "__complete", "-n", n.namespace, "wait", "st")
	if !strings.Contains("\n"+out, "\nstatefulset/db") {
		t.Errorf("wait st is completed by %q", out)
	}
}

// TestDaemonSet handles a DaemonSet that fails on its first nodes. A pod is finished ten seconds after it is Ready, so that the second
// pod is not finished when the first one fails.
func TestDaemonSet(t *testing.T) {
	n := &native{begin(t, true), "DaemonSet", "ds/db"}
	n.apply("minReadySeconds: 10")
	n.ends(0, "ds/db")
	n.acts([]string{"status", "ds/db"}, "daemonset/db in "+n.namespace, " desired, ")

	n.releases("busybox:2")
	n.acts([]string{"verdict", "fail", "ds/db", "--pod", n.finished(), "-m", "find error"}, ": fail", "release 2 is Suspend")
	n.ends(2, "ds/db")
	n.says([]string{"status", "db"}, "blocked, halted", "The operator halted the rollout (updateStrategy OnDelete)")
	if got := n.field(".spec.updateStrategy.type"); got != "OnDelete" {
		t.Errorf("updateStrategy is %s", got)
	}
	n.acts([]string{"override", "ds/db", "--image", "main=busybox:3"}, "busybox:3")
	n.ends(0, "ds/db")
	if got := n.field(".spec.updateStrategy.type"); got != "RollingUpdate" {
		t.Errorf("after the override updateStrategy is %s", got)
	}
	n.acts([]string{"enroll", "ds/db", "--mode=observe"}, "daemonset/db")
	n.says([]string{"status", "ds/db"}, "in observe mode")
	n.acts([]string{"enroll", "ds/db", "--mode=enforce"}, "daemonset/db")
}
