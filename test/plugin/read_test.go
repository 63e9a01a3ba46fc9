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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/plugin"
)

// status returns the output of status NAME for programs.
func (p *place) status(name string) (st plugin.Status) {
	p.Helper()
	if err := json.Unmarshal([]byte(p.output("status", name, "-o", "json")), &st); err != nil {
		p.Fatal(err)
	}
	return st
}

// explained returns the codes of the pressing findings of status NAME, and the commands of their next steps.
func (p *place) explained(name string) (codes, commands []string) {
	p.Helper()
	for _, f := range p.status(name).Findings {
		if f.Needs != plugin.NeedsAttention && f.Needs != plugin.NeedsTime {
			continue
		}
		codes = append(codes, f.Code)
		for _, do := range f.Do {
			commands = append(commands, do.Command)
		}
	}
	return codes, commands
}

func TestBlocked(t *testing.T) {
	p := begin(t, true)
	pod := p.blocked("sleep")
	p.says([]string{"status", "sleep"},
		"✖ deployment/sleep in "+p.namespace+": blocked", "Pods:     3 desired, 3 updated, 3 ready", "1 of 1 pod failed",
		"✔ passed", "2 pods", "3/3 ready", pod,
		"✖ Releases are blocked, because release 2", "\n  pod "+pod+": fail: find error\n",
		"Next steps:\n    kubectl altershield override deployment/sleep")
	out := p.output("status", "sleep")
	if n := strings.Count(out, "find error"); n != 1 {
		t.Errorf("it prints the error %d times:\n%s", n, out)
	}
	st := p.status("sleep")
	if st.Blocked == nil || st.Blocked.Release != 2 || st.Needs != plugin.NeedsAttention ||
		st.Releases[0].Status.Status != "Suspend" || st.ReleasedBy != "admin" {
		t.Errorf("for programs: %+v", st)
	}
	codes, commands := p.explained("sleep")
	in := " -n " + p.namespace
	if diff := cmp.Diff([]string{"Blocked"}, codes); diff != "" {
		t.Errorf("explained (-want +got):\n%s", diff)
	}
	want := []string{
		"kubectl altershield override deployment/sleep --image main=IMAGE" + in,
		"kubectl altershield rollback deployment/sleep" + in,
		"kubectl altershield verdict pass deployment/sleep --pod " + pod + in,
	}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Errorf("advised (-want +got):\n%s", diff)
	}
	for _, args := range [][]string{{"status"}, {"explain"}, {}} {
		p.says(args, "✖ deployment/sleep  blocked", "admin", "find error", "1 workload in "+p.namespace+": 1 needs attention.")
	}
	p.says([]string{"history", "sleep"},
		"✖ 2 (now)", "✔ 1 ", "busybox:1", "To go to the next one: kubectl altershield rollback deployment/sleep"+in)
	for args, want := range map[string]string{
		"status -o name":                                  "deployment.apps/sleep\n",
		"status sleep -o name":                            "deployment.apps/sleep\n",
		"history sleep -o name":                           "deployment.apps/sleep\n",
		"status sleep -o jsonpath={.summary}":             "blocked\n",
		"status -o jsonpath={.items[*].what}":             "blocked\n",
		"history sleep -o jsonpath={.releases[0].status}": "Suspend\n",
	} {
		if got := p.output(strings.Fields(args)...); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

func TestHeld(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 4, "busybox:1")
	p.reaches("sleep", v1alpha1.ChangeWorkloadSuccess)
	p.kubectl("annotate", "deployment", "sleep", v1alpha1.SettingAnnotationPrefix+"holding=every")
	p.release("sleep", "busybox:2")
	p.says([]string{"status", "sleep"}, "◷ deployment/sleep in "+p.namespace+": held", "The rollout waits for the verdicts on its pods",
		"kubectl altershield resume deployment/sleep -n "+p.namespace)
	p.says([]string{"status"}, "⏸ deployment/sleep  held", "1 waits.")
}

func TestRolledBack(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 2, "busybox:1")
	p.kubectl("annotate", "deployment", "sleep", v1alpha1.SettingAnnotationPrefix+"rollback=after=2s")
	good := p.reaches("sleep", v1alpha1.ChangeWorkloadSuccess)
	p.release("sleep", "busybo")
	p.says([]string{"status", "sleep"}, "rolled back", "quarantine", "release 3", "by the operator", "✖ Rollback")
	p.reaches("sleep", v1alpha1.ChangeWorkloadSuccess)
	codes, commands := p.explained("sleep")
	if diff := cmp.Diff([]string{"RolledBack"}, codes); diff != "" {
		t.Errorf("explained (-want +got):\n%s", diff)
	}
	bad := p.status("sleep").Quarantined[0].Version
	want := []string{
		"kubectl set image deployment/sleep main=IMAGE -n " + p.namespace,
		"kubectl annotate deployment/sleep " + v1alpha1.UnquarantineAnnotation + "=" + bad + " -n " + p.namespace,
	}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Errorf("advised (-want +got):\n%s", diff)
	}
	var h plugin.History
	if err := json.Unmarshal([]byte(p.output("history", "sleep", "-o", "json")), &h); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range h.Releases {
		got = append(got, fmt.Sprint(r.Release, " ", r.Status, " ", strings.Join(r.Images, ","), " ", r.Current))
	}
	if diff := cmp.Diff([]string{"3 Success busybox:1 true", "2 Rollback busybo false", "1 Success busybox:1 false"}, got); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if len(h.Versions) != 1 || h.Versions[0].Version != good.Spec.Reversion || !h.Versions[0].Current || h.Versions[0].Next {
		t.Errorf("the versions are %+v", h.Versions)
	}
}

func TestNotDefended(t *testing.T) {
	p := begin(t, false)
	p.deploy("sleep", 1, "busybox:1")
	p.says([]string{"status", "sleep"}, "is not enrolled", "kubectl altershield enroll "+p.namespace)
	p.says([]string{"status"}, "1 workload in "+p.namespace+": 1 is not defended.",
		"To begin: kubectl altershield enroll "+p.namespace+" --mode=observe")
	p.enroll()
	p.says([]string{"status", "sleep"}, "baseline")
	p.kubectl("label", "deployment", "sleep", v1alpha1.DefenseLabel+"="+v1alpha1.DefenseDisabled)
	p.says([]string{"status", "deploy/sleep"}, ": opted out")
	p.says([]string{"status", "deployments.apps", "sleep"}, "kubectl altershield enroll deployment/sleep -n "+p.namespace)
}

func TestObserveMode(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 1, "busybox:1")
	p.reaches("sleep", v1alpha1.ChangeWorkloadSuccess)
	p.kubectl("annotate", "deployment", "sleep", v1alpha1.SettingAnnotationPrefix+"observe=enabled")
	p.release("sleep", "busybox:2")
	p.reaches("sleep", v1alpha1.ChangeWorkloadSuccess)
	p.says([]string{"status", "sleep"}, "Defense:  in observe mode")
	p.fail("sleep", "find error")
	p.says([]string{"status", "sleep"}, "failed, not blocked", "in observe mode",
		"kubectl set image deployment/sleep main=IMAGE -n "+p.namespace)
	p.says([]string{"status", "sleep", "-o", "wide"}, "kubectl altershield enroll deployment/sleep --mode=enforce -n "+p.namespace)
	p.says([]string{"status"}, "✖ deployment/sleep  failed, not blocked", "1 is in observe mode.")
}

// TestWatch: status -w continues when watches expire, and ends when it is interrupted.
func TestWatch(t *testing.T) {
	p := begin(t, true)
	p.deploy("sleep", 1, "busybox:1")
	p.reaches("sleep", v1alpha1.ChangeWorkloadSuccess)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errOut safeBuffer
	ended := make(chan int, 1)
	broken := &expired{}
	go func() {
		ended <- p.runTo(ctx, func(c *rest.Config) {
			c.Wrap(func(rt http.RoundTripper) http.RoundTripper { broken.RoundTripper = rt; return broken })
		}, &out, &errOut, "status", "sleep", "-w", "-n", p.namespace)
	}()
	p.until("it is shown", func() error { return contains(out.String(), ": Success") })
	p.release("sleep", "busybox:2")
	second := regexp.MustCompile(`release 2 +✔ Success`)
	p.until("the next release is shown", func() error {
		if !second.MatchString(out.String()) {
			return errors.New(out.String())
		}
		return nil
	})
	broken.mu.Lock()
	if len(broken.seen) == 0 {
		t.Error("no watch expired")
	}
	broken.mu.Unlock()
	p.kubectl("delete", "deployment", "sleep")
	p.until("the deletion is shown", func() error { return contains(out.String(), "there is no deployment/sleep") })
	cancel()
	if code := <-ended; code != 0 || errOut.String() != "" {
		t.Errorf("it ended with %d: %s", code, errOut.String())
	}
	if n := len(second.FindAllString(out.String(), -1)); n > 6 {
		t.Errorf("the same text is shown %d times:\n%s", n, out.String())
	}
}

func contains(text, what string) error {
	if !strings.Contains(text, what) {
		return fmt.Errorf("it does not say %q, but\n%s", what, text)
	}
	return nil
}

// expired answers the first watch of each kind as expired.
type expired struct {
	http.RoundTripper
	mu   sync.Mutex
	seen map[string]bool
}

func (e *expired) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	first := r.URL.Query().Get("watch") != "" && !e.seen[r.URL.Path]
	if first {
		if e.seen == nil {
			e.seen = map[string]bool{}
		}
		e.seen[r.URL.Path] = true
	}
	e.mu.Unlock()
	if !first {
		return e.RoundTripper.RoundTrip(r)
	}
	return &http.Response{
		StatusCode: http.StatusGone, Status: "410 Gone", Proto: r.Proto, ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": []string{"application/json"}},
		Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure",` +
			`"reason":"Expired","code":410,"message":"too old resource version"}`)),
	}, nil
}

func TestErrors(t *testing.T) {
	p := begin(t, true)
	tests := map[string]struct {
		args []string
		want string
	}{
		"no such name": {
			[]string{"status", "nothing"},
			"there is no workload nothing in the namespace " + p.namespace + "\n  choose the namespace with -n",
		},
		"no such workload": {
			[]string{"status", "sts/nothing"},
			"there is no statefulset/nothing in the namespace " + p.namespace + "\n  choose the namespace with -n",
		},
		"no such kind":   {[]string{"status", "job/sleep"}, `"job" is no kind of workload that is defended`},
		"no such format": {[]string{"status", "-o", "csv"}, "-o csv is no format"},
	}
	for name, tt := range tests {
		out, errOut, code := p.run(tt.args...)
		if code != 1 || !strings.Contains(errOut, tt.want) || out != "" {
			t.Errorf("%s: exit code %d, prints %q and %q, not %q", name, code, out, errOut, tt.want)
		}
	}
	out, errOut, code := p.run("status")
	if code != 0 || errOut != "" || !strings.Contains(out, "0 workloads in "+p.namespace) {
		t.Errorf("of an empty namespace: exit code %d\n%s%s", code, out, errOut)
	}
}

// TestRights: with fewer rights, status shows less, and lists what is missing.
func TestRights(t *testing.T) {
	p := begin(t, true)
	p.blocked("sleep")
	p.kubectl("create", "role", "reader", "--verb=get,list", "--resource=deployments.apps,changeworkloads.app.ops.cloud.alipay.com")
	p.kubectl("create", "rolebinding", "reader", "--role=reader", "--user=reader")
	out, errOut, code := p.runWith(t.Context(), nil, "status", "sleep", "-n", p.namespace, "--as", "reader")
	if code != 1 || !strings.Contains(errOut, "replicasets.apps is forbidden") || !strings.Contains(errOut, "your user lacks this right") {
		t.Errorf("without replica sets: exit code %d\n%s%s", code, out, errOut)
	}
	p.kubectl("create", "role", "more", "--verb=get,list", "--resource=replicasets.apps")
	p.kubectl("create", "rolebinding", "more", "--role=more", "--user=reader")
	p.until("the right counts", func() error {
		out, errOut, code = p.runWith(t.Context(), nil, "status", "sleep", "-n", p.namespace, "--as", "reader")
		if code != 0 {
			return fmt.Errorf("exit code %d\n%s%s", code, out, errOut)
		}
		return nil
	})
	for _, want := range []string{
		": blocked", "its pods are not known", "the settings in force are not known", "whether its namespace is enrolled is not known",
	} {
		if err := contains(out, want); err != nil {
			t.Error(err)
		}
	}
	out, errOut, code = p.runWith(t.Context(), nil, "status", "-A", "--as", "reader")
	if code != 1 || !strings.Contains(errOut, "forbidden") {
		t.Errorf("everywhere: exit code %d\n%s%s", code, out, errOut)
	}
	out, errOut, code = p.runWith(t.Context(), nil, "status", "-n", p.namespace, "--as", "reader")
	if code != 0 || !strings.Contains(out, "✖ deployment/sleep  blocked") ||
		!strings.Contains(out, "which policies are accepted is not known") {
		t.Errorf("in the namespace: exit code %d\n%s%s", code, out, errOut)
	}
}
