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
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/plugin"
)

// denied runs a command that fails with an error that contains all texts.
func (p *place) denied(args []string, texts ...string) {
	p.Helper()
	out, errOut, code := p.run(args...)
	if code != 1 {
		p.Errorf("kubectl altershield %s: exit code %d, want 1\n%s%s", strings.Join(args, " "), code, out, errOut)
	}
	for _, text := range texts {
		if !strings.Contains(errOut, text) {
			p.Errorf("kubectl altershield %s does not say %q, but\n%s", strings.Join(args, " "), text, errOut)
		}
	}
}

// acts runs a command that succeeds, and prints all texts in this order.
func (p *place) acts(args []string, texts ...string) {
	p.Helper()
	out := p.output(args...)
	rest := out
	for _, text := range texts {
		_, after, found := strings.Cut(rest, text)
		if !found {
			p.Errorf("kubectl altershield %s does not print %q, or in another order, but\n%s", strings.Join(args, " "), text, out)
			return
		}
		rest = after
	}
}

// workload reads a Deployment.
func (p *place) workload(name string) *appsv1.Deployment {
	p.Helper()
	d := &appsv1.Deployment{}
	if err := stage.api.Get(p.Context(), types.NamespacedName{Namespace: p.namespace, Name: name}, d); err != nil {
		p.Fatal(err)
	}
	return d
}

// waits waits for a release with wait, and returns its exit code and its output.
func (p *place) waits(args ...string) (code int, out string) {
	p.Helper()
	out, errOut, code := p.run(append([]string{"wait", "--timeout=2m"}, args...)...)
	return code, out + errOut
}

// ends waits for a release, and checks the exit code.
func (p *place) ends(code int, args ...string) string {
	p.Helper()
	got, out := p.waits(args...)
	if got != code {
		p.Errorf("kubectl altershield wait %s: exit code %d, want %d\n%s", strings.Join(args, " "), got, code, out)
	}
	return out
}

// fails fails the release of a Deployment, and waits for the state Suspend.
func (p *place) fails(name string) {
	p.Helper()
	p.fail(name, "find error")
	p.reaches(name, v1alpha1.ChangeWorkloadSuspend)
	p.ends(2, name)
}

func TestVerdict(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 3, "busybox:1")
	p.ends(0, "sleep")
	var pods corev1.PodList
	if err := stage.api.List(t.Context(), &pods, client.InNamespace(p.namespace)); err != nil || len(pods.Items) != 3 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	first, second := pods.Items[0].Name, pods.Items[1].Name
	p.denied([]string{"verdict", "pass", "sleep"}, "nothing of release 1 fails; it is Success")
	p.denied([]string{"verdict", "fail", "sleep"}, "fail needs the pods that failed", "--pod")
	p.denied([]string{"verdict", "fail", "sleep", "--pod", "none"}, "pod none is in no batch of release 1")
	p.denied([]string{"verdict", "fail", "sleep", "--batch", "7"}, "release 1 has no batch 7", "it has 1, 2, 3")

	before := p.workload("sleep").ResourceVersion
	for _, dryRun := range []string{"--dry-run", "--dry-run=server"} {
		p.acts([]string{"verdict", "fail", "sleep", "--pod", first, dryRun}, "pod "+first+": fail", "dry run)")
	}
	if p.current("sleep").Status.FailCount != 0 || p.workload("sleep").ResourceVersion != before {
		t.Error("a dry run changed something")
	}
	p.acts([]string{"verdict", "fail", "sleep", "--pod", first, "--pod", second, "-m", "find error"},
		"pod "+first+": fail", "release 1 becomes Suspend, and releases are blocked", "release 1 is Suspend",
		"releases are blocked since", "see: kubectl altershield status deployment/sleep -n "+p.namespace)
	p.ends(2, "sleep")
	c := p.current("sleep")
	if c.Status.FailCount != 2 || c.Status.DefenseCheckFailPods[0].Message != "find error" {
		t.Errorf("failed pods: %+v", c.Status.DefenseCheckFailPods)
	}
	p.acts([]string{"verdict", "pass", "sleep", "--pod", first, "-m", "false alarm"},
		"release 1 stays Suspend: pod "+second+" still fails", "releases are blocked since")
	p.acts([]string{"verdict", "pass", "sleep"}, "pod "+second+": pass", "its block is lifted", "release 1 is Success")
	p.until("the block is lifted", func() error {
		if value, blocked := p.workload("sleep").Labels[v1alpha1.SuspendLabel]; blocked {
			return fmt.Errorf("blocked since %s", value)
		}
		return nil
	})
	if corrections := p.current("sleep").Status.Corrections; len(corrections) != 2 || corrections[0].FieldManager != "kubectl-altershield" {
		t.Errorf("corrections are %+v", corrections)
	}
}

func TestVerdictOnTheReleaseItself(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 1, "busybox:1")
	p.ends(0, "sleep")
	name := p.current("sleep").Name
	for what, tt := range map[string]struct{ status, args, line string }{
		"order": {
			`"orderPostVerdict":{"verdict":"fail","delivered":"fail","message":"freeze"}`,
			"--order", "the POST check of the order: pass in place of fail",
		},
		"check": {
			`"checks":[{"name":"shop/smoke/ping","type":"HTTP","stage":"ReleasePost","phase":"Failed","reason":"HTTP503"}]`,
			"--checks", "the check shop/smoke/ping: Passed in place of Failed",
		},
	} {
		p.kubectl("patch", "cwl", name, "--subresource=status", "--type=merge", "-p", `{"status":{`+tt.status+`}}`)
		p.reaches("sleep", v1alpha1.ChangeWorkloadSuspend)
		p.ends(2, "sleep")
		p.acts([]string{"verdict", "pass", "sleep", tt.args, "-m", what + " was wrong"}, tt.line, "its block is lifted", "release 1 is Success")
		p.isFree("sleep")
		if c := p.current("sleep"); c.Status.OrderFailed || c.Status.CheckFailed {
			t.Errorf("%s: %+v", what, c.Status)
		}
	}
}

func TestOverride(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 2, "busybox:1")
	p.ends(0, "sleep")
	p.denied([]string{"override", "sleep", "--image", "main=busybox:2"}, "is not blocked", "releases pass")
	p.fails("sleep")

	p.denied([]string{"override", "sleep", "--image", "main=busybox:1"},
		"nothing would be released", "verdict pass deployment/sleep -n "+p.namespace)
	p.denied([]string{"override", "sleep", "--image", "web=busybox:2"}, `has no container "web"`, "it has main")
	p.acts([]string{"override", "sleep", "--image", "main=busybox:2", "--dry-run=server"},
		"releases are blocked, because release 1", "(busybox:2) in place of", "released (server dry run)")
	if got := p.workload("sleep").Spec.Template.Spec.Containers[0].Image; got != "busybox:1" {
		t.Fatalf("a dry run released %s", got)
	}
	p.acts([]string{"override", "sleep", "--image", "main=busybox:2"},
		"release 2 (version ", "its Success lifts the block", "see: kubectl altershield wait deployment/sleep -n "+p.namespace)
	p.ends(0, "sleep")
	p.isFree("sleep")

	// The label for the next release, set with kubectl.
	p.kubectl("label", "deployment", "sleep", v1alpha1.IgnoredSuspendLabel+"=true")
	p.fails("sleep")
	p.until("the label has no effect", func() error {
		if annotations := p.workload("sleep").Annotations; annotations[v1alpha1.OverrideStaleAnnotation] == "" {
			return fmt.Errorf("annotations %v", annotations)
		}
		return nil
	})
	p.acts([]string{"override", "sleep", "--image", "main=busybox:3", "--dry-run=server"}, "was there before the block and does not count")
	p.acts([]string{"override", "sleep", "--image", "main=busybox:2b"},
		"which was there before the block and does not count", "label removed", "released", "release 3")
	p.ends(0, "sleep")
	p.isFree("sleep")
	p.fails("sleep")
	p.acts([]string{"override", "sleep", "--next"}, "the next release that is blocked or in quarantine passes, once")
	p.acts([]string{"override", "sleep", "--next"}, "the next release passes already")
	p.release("sleep", "busybox:3")
	p.ends(0, "sleep")
	p.isFree("sleep")
}

// isFree checks that a Deployment is not blocked, and has no label that lets a later release pass a block.
func (p *place) isFree(name string) {
	p.Helper()
	p.until(name+" is not blocked", func() error {
		labels := p.workload(name).Labels
		for _, label := range []string{v1alpha1.SuspendLabel, v1alpha1.IgnoredSuspendLabel} {
			if value, there := labels[label]; there {
				return fmt.Errorf("it has the label %s=%s", label, value)
			}
		}
		return nil
	})
}

func TestRollbackAndQuarantine(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 2, "busybox:1")
	p.ends(0, "sleep")
	p.denied([]string{"rollback", "sleep"},
		"the history has no version except the current one", "(busybox:1), which succeeded as release 1 (the current one)")
	p.release("sleep", "busybox:2")
	p.ends(0, "sleep")
	good, bad := "", p.workload("sleep").Labels[v1alpha1.VersionLabel]
	p.acts([]string{"rollback", "sleep", "--dry-run=server"},
		"(busybox:2) to version ", "(busybox:1), which succeeded as release 1", "annotated (server dry run)")
	p.denied([]string{"rollback", "sleep", "--to", "abcdef"}, `no version "abcdef"`, "the history has:")
	p.acts([]string{"rollback", "sleep"},
		"(busybox:2) to version ", "rolled back; version ", "as release 3, and version "+bad+" is in quarantine")
	p.ends(3, "sleep", "--release=2")
	p.ends(3, "sleep", "--version", bad[:8])
	p.ends(0, "sleep")
	if good = p.workload("sleep").Labels[v1alpha1.VersionLabel]; good == bad {
		t.Fatalf("still at version %s", bad)
	}

	p.denied([]string{"rollback", "sleep", "--to", bad}, "the operator would refuse: version "+bad+" was rolled back at", "(in quarantine)")
	p.acts([]string{"override", "sleep", "--image", "main=busybox:2", "--dry-run"},
		"version "+bad+" is in quarantine: Requested", "released (dry run)")
	p.denied([]string{"override", "sleep", "--image", "main=busybox:7"}, "is neither blocked nor in quarantine", "passes without an override")
	p.kubectl("annotate", "deployment/sleep", v1alpha1.UnquarantineAnnotation+"="+bad)
	p.release("sleep", "busybox:2")
	p.ends(0, "sleep")
}

func TestRollbackIsRefused(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 1, "busybox:1")
	p.ends(0, "sleep")
	p.release("sleep", "busybox:2")
	p.ends(0, "sleep")
	p.acts([]string{"enroll", "deployment/sleep", "--mode=observe"}, "observe=enabled", `in observe mode, because of the annotation`)
	p.denied([]string{"rollback", "sleep"},
		"the workload is in observe mode (setting observe)", "enroll deployment/sleep --mode=enforce -n "+p.namespace)
	p.acts([]string{"enroll", "deployment/sleep"}, "remove the annotation", "in enforce mode")
	p.acts([]string{"enroll", "deployment/sleep"}, "nothing to change")
	// A user who may not read the settings reads the reason in an event of the operator.
	p.kubectl("annotate", "deployment", "sleep", v1alpha1.SettingAnnotationPrefix+"observe=enabled")
	p.kubectl("create", "serviceaccount", "dev")
	p.kubectl("create", "rolebinding", "dev", "--clusterrole=edit", "--serviceaccount="+p.namespace+":dev")
	as := "--as=system:serviceaccount:" + p.namespace + ":dev"
	p.denied([]string{"rollback", "sleep", as},
		"the operator refused: A rollback is refused or waits: the rollback to", "the workload is in observe mode")
}

// number returns the number of the current release of a Deployment.
func (p *place) number(name string) int {
	p.Helper()
	n, err := strconv.Atoi(p.workload(name).Annotations[v1alpha1.ReleaseAnnotation])
	if err != nil {
		p.Fatal(err)
	}
	return n
}

// waitsMeanwhile waits for a release while the test continues, and sends the exit code.
func (p *place) waitsMeanwhile(name string, release int) <-chan int {
	done := make(chan int, 1)
	go func() {
		_, _, code := p.runWith(p.Context(), nil, "wait", name, fmt.Sprintf("--release=%d", release), "--timeout=2m", "-n", p.namespace)
		done <- code
	}()
	return done
}

func TestWaitTellsHowReleasesEnd(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 2, "busybox:1")
	p.ends(0, "sleep")

	// Rolled back, because its image does not exist.
	p.kubectl("annotate", "deployment", "sleep", v1alpha1.SettingAnnotationPrefix+"rollback=after=2s")
	p.release("sleep", "busybo")
	if out := p.ends(3, "sleep"); !strings.Contains(out, "ErrImagePull") {
		t.Errorf("it does not say why:\n%s", out)
	}
	p.ends(0, "sleep", "--release=3") // the version that was restored
	p.ends(3, "sleep", "--release=2")
	other := "to wait for the restored version: kubectl altershield wait deployment/sleep --release=3 -n " + p.namespace
	if out := p.ends(3, "sleep"); !strings.Contains(out, other) {
		t.Errorf("it does not say how to wait for the version that was restored:\n%s", out)
	}

	// Replaced before it ended: its pods are not available for long.
	patch := `{"spec":{"minReadySeconds":%d,"template":{"spec":{"containers":[{"name":"main","image":"busybox:%d"}]}}}}`
	p.kubectl("patch", "deployment", "sleep", "-p", fmt.Sprintf(patch, 300, 2))
	slow := fmt.Sprint(p.number("sleep"))
	out, _, code := p.run("wait", "sleep", "--timeout=3s", "-o", "json")
	var result plugin.WaitResult
	err := json.Unmarshal([]byte(out), &result)
	if err != nil || code != 124 || result.Ending != "Timeout" || fmt.Sprint(result.Release) != slow {
		t.Errorf("exit code %d, %+v, %v", code, result, err)
	}
	p.kubectl("patch", "deployment", "sleep", "-p", fmt.Sprintf(patch, 0, 3))
	p.ends(4, "sleep", "--release="+slow)
	p.ends(0, "sleep")
	p.ends(4, "sleep", "--release="+slow) // its record is gone

	// A number that is yet to come, and a release by another user meanwhile.
	done := p.waitsMeanwhile("sleep", p.number("sleep")+1)
	p.release("sleep", "busybox:4")
	if code := <-done; code != 0 {
		t.Errorf("of a release that was yet to come: exit code %d", code)
	}

	p.acts([]string{"enroll", "deployment/sleep", "--mode=off"}, "defense=disabled",
		"to undo this: kubectl altershield enroll deployment/sleep -n "+p.namespace, "nothing of the operator is left to take back")
	p.ends(6, "sleep")
	p.denied([]string{"rollback", "sleep"}, "opted out of the defense", "enroll deployment/sleep")
	p.acts([]string{"enroll", "deployment/sleep"}, "remove the label", "in enforce mode")

	done = p.waitsMeanwhile("sleep", p.number("sleep")+1)
	p.kubectl("delete", "deployment", "sleep")
	if code := <-done; code != 4 && code != 1 { // 1 if it had not begun: no such workload
		t.Errorf("of a workload that is deleted: exit code %d", code)
	}
	p.denied([]string{"wait", "sleep"}, "there is no workload sleep in the namespace "+p.namespace)
}

// flaky answers some requests with errors, and ends watches early.
type flaky struct {
	http.RoundTripper
	n *atomic.Int64
}

func (f flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	watch := r.URL.Query().Get("watch") != ""
	if n := f.n.Add(1); n > 4 && n%5 == 0 && !watch {
		return &http.Response{
			StatusCode: http.StatusServiceUnavailable, Status: "503", Proto: r.Proto, Body: http.NoBody, Request: r,
			Header: http.Header{},
		}, nil
	}
	if watch {
		q := r.URL.Query()
		q.Set("timeoutSeconds", "1")
		r = r.Clone(r.Context())
		r.URL.RawQuery = q.Encode()
	}
	return f.RoundTripper.RoundTrip(r)
}

func TestWaitOutlivesTrouble(t *testing.T) {
	p := begin(t, true)
	p.kubectl("create", "configmap", "not-there-yet")
	p.deploy("sleep", 3, "busybox:1")
	var n atomic.Int64
	out, errOut, code := p.runWith(t.Context(), func(c *rest.Config) {
		c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return flaky{rt, &n} })
	}, "wait", "deployment/sleep", "--timeout=2m", "-n", p.namespace)
	if code != 0 {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	if !strings.Contains(errOut, "trying again") {
		t.Errorf("it does not report the trouble:\n%s%s", out, errOut)
	}
}

func TestEnroll(t *testing.T) {
	p := begin(t, false)
	p.deploy("sleep", 1, "busybox:1")
	p.ends(6, "sleep")
	p.denied([]string{"enroll", "kube-system"}, "kube-system is a namespace of the cluster itself")
	p.denied([]string{"enroll", "altershieldoperator-system"}, "is the namespace of the operator")
	p.denied([]string{"enroll", "no-such-namespace"}, "there is no namespace no-such-namespace")
	warnings := []string{
		"1 workload without a recorded release: baselines", "without a readiness probe", "deployment/sleep",
		"without minReadySeconds", "deployment/sleep",
	}
	p.acts([]string{"enroll", "--mode=observe", "--dry-run=server"},
		append(warnings, "observe created (server dry run)", "labeled (server dry run)")...)
	p.acts([]string{"enroll", "--mode=observe"}, append(warnings, "observe created", "namespace/"+p.namespace+" labeled")...)
	p.acts([]string{"enroll"}, "is enrolled already", "in observe mode, because of the OpsConfigInfo")
	p.until("the setting observe is accepted", func() error {
		if out := p.kubectl("get", "oci", "observe", "-o", "jsonpath={.status.conditions[?(@.type=='Accepted')].status}"); out != "True" {
			return fmt.Errorf("accepted: %q", out)
		}
		return nil
	})
	p.release("sleep", "busybox:2")
	p.ends(0, "sleep")
	p.fails("sleep")
	if _, blocked := p.workload("sleep").Labels[v1alpha1.SuspendLabel]; blocked {
		t.Error("it is blocked, and in observe mode")
	}
	p.acts([]string{"enroll", "--mode=enforce"}, "set enable: false", "observe patched", "in enforce mode")
	p.release("sleep", "busybox:3")
	p.ends(0, "sleep")
	p.fails("sleep")
	p.until("it is blocked", func() error {
		if _, blocked := p.workload("sleep").Labels[v1alpha1.SuspendLabel]; !blocked {
			return fmt.Errorf("labels %v", p.workload("sleep").Labels)
		}
		return nil
	})
	p.acts([]string{"enroll", "--mode=off", "--dry-run"},
		"deployment/sleep in "+p.namespace+": the operator takes back its block", "label removed (dry run)")
	p.acts([]string{"enroll", "--mode=off"}, "takes back its block", "label removed", "nothing of the operator is left to take back")
	p.isFree("sleep")
	p.acts([]string{"enroll", "--mode=off"}, "is not enrolled")
}

func TestVersionAndCompletion(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 1, "busybox:1")
	p.ends(0, "sleep")
	var v plugin.Versions
	err := json.Unmarshal([]byte(p.output("version", "-o", "json")), &v)
	if err != nil || v.Client.Version != "v0.0.0-test" || v.Server.Namespace != controlplane.ManagerNamespace {
		t.Errorf("%+v, %v", v, err)
	}
	version := p.workload("sleep").Labels[v1alpha1.VersionLabel]
	for typed, want := range map[string]string{
		"wait dep": "deployment/sleep", "rollback sl": "sleep", "verdict ": "fail", "verdict pass deployment/": "deployment/sleep",
		"rollback sleep --to ": version, "wait sleep --version ": version, "verdict fail sleep --pod ": "sleep-",
		"enroll " + p.namespace[:6]: p.namespace, "wait sleep --for ": "proven",
	} {
		words := strings.Split(typed, " ")
		args := append([]string{"__complete", "-n", p.namespace}, words...)
		out, _, code := p.runWith(t.Context(), nil, args...)
		if code != 0 || !strings.Contains("\n"+out, "\n"+want) {
			t.Errorf("%q is completed by %q, without %q", typed, out, want)
		}
	}
}
