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
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const testKubeconfig = `
apiVersion: v1
kind: Config
current-context: test
contexts:
- {name: test, context: {cluster: test, namespace: shop}}
- {name: other, context: {cluster: test}}
clusters: [{name: test, cluster: {server: "https://127.0.0.1:1"}}]
`

// testConnection returns a connection whose context is in the namespace shop.
func testConnection(t *testing.T) (c *connection, out *bytes.Buffer) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(testKubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	return &connection{Options: Options{IOStreams: streams, Now: time.Now}, flags: genericclioptions.NewConfigFlags(true)}, out
}

// storedDeployment returns a Deployment as the API server has it.
func storedDeployment(t *testing.T, change func(d *appsv1.Deployment)) *unstructured.Unstructured {
	t.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "sleep", UID: "w"}}
	d.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "init:1"}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "main:1"}, {Name: "side", Image: "side:1"}}
	if change != nil {
		change(d)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
	if err != nil {
		t.Fatal(err)
	}
	stored := &unstructured.Unstructured{Object: content}
	stored.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	return stored
}

// situationOf returns the snapshot of a Deployment in an enrolled namespace.
func situationOf(t *testing.T, change func(d *appsv1.Deployment)) *snapshot {
	t.Helper()
	stored := storedDeployment(t, change)
	s := &snapshot{target: target{kind: workload.Deployment{}, key: client.ObjectKeyFromObject(stored)}, now: time.Unix(1_800_000_000, 0)}
	if err := s.take(stored); err != nil {
		t.Fatal(err)
	}
	s.namespace = &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "shop", Labels: map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue},
	}}
	return s
}

func TestPrintedCommands(t *testing.T) {
	c, _ := testConnection(t)
	in := func(namespace string) target {
		return target{kind: workload.Deployment{}, key: types.NamespacedName{Namespace: namespace, Name: "sleep"}}
	}
	other := "other"
	for _, tt := range []struct {
		context   *string
		namespace string
		want      string
	}{
		{nil, "shop", "kubectl altershield override deployment/sleep --next"},
		{nil, "ware", "kubectl altershield override deployment/sleep --next -n ware"},
		{&other, "shop", "kubectl altershield override deployment/sleep --next -n shop --context=other"},
		{&other, "default", "kubectl altershield override deployment/sleep --next --context=other"},
	} {
		c.flags.Context = tt.context
		if got := c.command(in(tt.namespace), "override", "--next"); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestClusterFlags(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"the current context", nil, ""},
		{"a file and a context", []string{"--context=other", "--kubeconfig", "my file"}, " --kubeconfig='my file' --context=other"},
		{"a cluster and a user", []string{"--cluster=there", "--user=ann", "-n", "shop"}, " --cluster=there --user=ann"},
		{"a server", []string{"--server=https://there:6443"}, " --server=https://there:6443"},
		{"as another user", []string{"--as=ann", "--as-uid=7", "--as-group=dev", "--as-group=it's ops"},
			` --as=ann --as-uid=7 --as-group=dev --as-group='it'\''s ops'`},
		{"a token is not printed", []string{"--token=secret"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := testConnection(t)
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			c.flags.AddFlags(flags)
			if err := flags.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			if got := c.flagsFor(""); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
			// Commands that change something print the same flags.
			if got := c.commandIn("", "check"); got != "kubectl altershield check"+tt.want {
				t.Errorf("%q, want %q after the command", got, tt.want)
			}
		})
	}
}

func TestUndefended(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(s *snapshot)
		want   string
	}{
		"defended": {func(*snapshot) {}, ""},
		"opted out": {func(s *snapshot) {
			s.workload.Labels = map[string]string{v1alpha1.DefenseLabel: v1alpha1.DefenseDisabled}
		}, "opted out"},
		"not enrolled":               {func(s *snapshot) { s.namespace.Labels = nil }, "the namespace shop is not enrolled"},
		"of the cluster":             {func(s *snapshot) { s.namespace.Name = metav1.NamespaceSystem }, "never enrolled"},
		"going":                      {func(s *snapshot) { s.namespace.DeletionTimestamp = &metav1.Time{} }, "is being deleted"},
		"its namespace is not known": {func(s *snapshot) { s.namespace = nil }, ""},
	} {
		s := situationOf(t, nil)
		tt.change(s)
		if got := s.notDefended(); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestMayOverride(t *testing.T) {
	quarantined := func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{}
		rollback.Quarantine{}.With(versionB, rollback.QuarantineReason{Cause: v1alpha1.ReasonNeverStarted, Pod: "p"}).Annotate(d.Annotations)
	}
	blocked := func(d *appsv1.Deployment) {
		d.Labels = map[string]string{v1alpha1.SuspendLabel: "1"}
		d.Annotations = map[string]string{v1alpha1.SuspendedByAnnotation: versionA + " 3 uid"}
	}
	for name, tt := range map[string]struct {
		change func(d *appsv1.Deployment)
		// wantDenied is what denies releases, and wantErr why there is nothing to override.
		wantDenied, wantErr string
	}{
		"blocked":     {blocked, "releases are blocked, because release 3 (version " + versionA + ") failed", ""},
		"by a user":   {func(d *appsv1.Deployment) { d.Labels = map[string]string{v1alpha1.SuspendLabel: "1"} }, "releases are blocked", ""},
		"quarantined": {quarantined, "version " + versionB + " is in quarantine: NeverStarted: pod p", ""},
		"free":        {nil, "", "releases pass"},
	} {
		s := situationOf(t, tt.change)
		err := mayOverride(s)
		switch {
		case tt.wantErr == "" && err != nil, tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
			t.Errorf("%s: error %v, want %q", name, err, tt.wantErr)
		case err == nil && describeDenied(s) != tt.wantDenied:
			t.Errorf("%s: %q, want %q", name, describeDenied(s), tt.wantDenied)
		}
	}
}

func TestIsOverride(t *testing.T) {
	c, _ := testConnection(t)
	s := situationOf(t, nil)
	would := func(version, recorded, label string) *workload.Workload {
		w := &workload.Workload{Version: version, Labels: map[string]string{v1alpha1.VersionLabel: recorded}}
		if label != "" {
			w.Labels[v1alpha1.IgnoredSuspendLabel] = label
		}
		return w
	}
	for name, tt := range map[string]struct {
		would   *workload.Workload
		wantErr string
	}{
		"an override release":  {would(versionB, versionB, ""), ""},
		"the same template":    {would(s.workload.Version, s.workload.Version, "true"), "nothing would be released"},
		"needs no override":    {would(versionB, versionB, "true"), "it passes without an override"},
		"admission is down":    {would(versionB, versionA, "true"), "admission did not answer"},
		"it has never been up": {would(versionB, "", "true"), "admission did not answer"},
	} {
		if err := c.isOverride(s, tt.would); (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: %v, want %q", name, err, tt.wantErr)
		}
	}
}

func TestImageOps(t *testing.T) {
	s := situationOf(t, nil)
	got, changes, err := imageOps(s, []string{"side=side:2", "init=init:1"})
	want := []workload.Op{
		{Op: "test", Path: "/spec/template/spec/initContainers/0/name", Value: "init"},
		{Op: "add", Path: "/spec/template/spec/initContainers/0/image", Value: "init:1"},
		{Op: "test", Path: "/spec/template/spec/containers/1/name", Value: "side"},
		{Op: "add", Path: "/spec/template/spec/containers/1/image", Value: "side:2"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || !changes {
		t.Errorf("changes %t, %v (-want +got):\n%s", changes, err, diff)
	}
	if _, changes, err := imageOps(s, []string{"side=side:1", "init=init:1"}); changes || err != nil {
		t.Errorf("of the same images: changes %t, %v", changes, err)
	}
	for image, want := range map[string]string{
		"web=x": "it has init, main, side", "main:2": "names no container", "main=": "names no container",
	} {
		if _, _, err := imageOps(s, []string{image}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of %s: %v", image, err)
		}
	}
}

func TestMapOps(t *testing.T) {
	value := "x"
	for name, tt := range map[string]struct {
		stored map[string]string
		value  *string
		want   []workload.Op
	}{
		"the first": {nil, &value, []workload.Op{
			{Op: "test", Path: "/metadata/resourceVersion", Value: "7"}, {Op: "add", Path: "/metadata/labels", Value: map[string]string{"a/b": "x"}},
		}},
		"another": {map[string]string{"c": "d"}, &value, []workload.Op{{Op: "add", Path: "/metadata/labels/a~1b", Value: "x"}}},
		"remove": {map[string]string{"a/b": "y"}, nil, []workload.Op{
			{Op: "test", Path: "/metadata/labels/a~1b", Value: "y"}, {Op: "remove", Path: "/metadata/labels/a~1b"},
		}},
		"remove none": {map[string]string{"c": "d"}, nil, nil},
	} {
		o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Labels: tt.stored}}
		if diff := cmp.Diff(tt.want, labelOps(o, "a/b", tt.value)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestFirstLabel sets the first label of a workload that got another label since it was read.
func TestFirstLabel(t *testing.T) {
	api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(storedDeployment(t, nil)).Build()
	read := func() *unstructured.Unstructured {
		t.Helper()
		o := storedDeployment(t, nil)
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	value := "x"
	first, second := read(), read()
	if _, err := patchOps(t.Context(), api, first, labelOps(first, "a", &value), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := patchOps(t.Context(), api, second, labelOps(second, "b", &value), nil); err == nil {
		t.Errorf("the labels are %v", read().GetLabels())
	}
	second = read()
	_, err := patchOps(t.Context(), api, second, labelOps(second, "b", &value), nil)
	if diff := cmp.Diff(map[string]string{"a": "x", "b": "x"}, read().GetLabels()); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestChanger(t *testing.T) {
	for dryRun, want := range map[string]string{
		dryRunNone: "what\ndone\n", dryRunClient: "what\ndone (dry run)\n", dryRunServer: "what\ndone (server dry run)\n",
	} {
		c, out := testConnection(t)
		change, writes := &changer{connection: c, dryRun: dryRun}, 0
		err := change.change("what", "done", func(options []string) error {
			writes++
			if stores := len(options) == 0; stores != (dryRun == dryRunNone) {
				t.Errorf("%s: the API server gets %v", dryRun, options)
			}
			return nil
		})
		if err != nil || out.String() != want || (writes == 0) != (dryRun == dryRunClient) {
			t.Errorf("%s: %v, %d writes\n%s", dryRun, err, writes, out)
		}
	}
	if err := (&changer{dryRun: "maybe"}).check(); err == nil {
		t.Error("maybe is a dry run")
	}
}

func TestFullVersion(t *testing.T) {
	known := []string{versionA, versionB, "bbbbbbc0000000000000000000000000", versionA}
	for begin, want := range map[string]string{
		versionA: versionA, "aaaaaa": versionA, "aaaaa": "", "bbbbbb": "", "bbbbbbb": versionB, "cccccc": "", "": "",
	} {
		if got, err := fullVersion(begin, known); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", begin, got, err, want)
		}
	}
}

func TestRollbackOutcome(t *testing.T) {
	before := atRelease(versionB, 2)
	another := atRelease(versionB, 2)
	another.UID = "x"
	for name, tt := range map[string]struct {
		after *workload.Workload
		want  string
	}{
		"done":             {rolledBackFrom(versionB, 2, versionA), rollbackDone},
		"another version":  {rolledBackFrom(versionB, 2, versionC), rollbackOvertaken},
		"refused":          {atRelease(versionB, 2), rollbackRefused},
		"another release":  {atRelease(versionC, 3), rollbackOvertaken},
		"another workload": {another, rollbackOvertaken},
	} {
		if got := rollbackOutcome(before, tt.after, versionA); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestChooseTarget(t *testing.T) {
	c, _ := testConnection(t)
	history := []remembered{
		{Revision: workload.Revision{Version: versionB, Release: 2}, images: []string{"b"}},
		{Revision: workload.Revision{Version: versionA, Release: rollback.BaselineRelease}, images: []string{"a"}},
	}
	owned := atRelease(versionC, 3)
	owned.Owner = "prometheus k8s"
	quarantined := atRelease(versionC, 3)
	rollback.Quarantine{}.With(versionB, rollback.QuarantineReason{Cause: v1alpha1.ReasonRollbackRequested}).Annotate(quarantined.Annotations)
	for name, tt := range map[string]struct {
		workload *workload.Workload
		history  []remembered
		to       string
		observe  bool
		want     string
		wantErr  string
	}{
		"the newest":            {atRelease(versionC, 3), history, rollback.LastSuccess, false, versionB, ""},
		"not in quarantine":     {quarantined, history, rollback.LastSuccess, false, versionA, ""},
		"a named version":       {atRelease(versionC, 3), history, "aaaaaa", false, versionA, ""},
		"one in quarantine":     {quarantined, history, versionB, false, "", "(b), which succeeded as release 2 (in quarantine)"},
		"the current one":       {atRelease(versionB, 2), history, versionB, false, "", "version " + versionB + " is the current one"},
		"none":                  {atRelease(versionC, 3), history, "dddddd", false, "", `no version "dddddd"`},
		"observed":              {atRelease(versionC, 3), history, rollback.LastSuccess, true, "", "enroll deployment/sleep --mode=enforce"},
		"owned":                 {owned, history, rollback.LastSuccess, true, "", "enroll deployment/sleep --mode=enforce"},
		"nothing has succeeded": {atRelease(versionC, 3), nil, rollback.LastSuccess, false, "", "its history is empty"},
	} {
		in := rollback.Input{Now: time.Unix(1, 0), Workload: tt.workload, Enrolled: true, History: revisions(tt.history)}
		in.Settings.Observe = tt.observe
		sleep := target{kind: workload.Deployment{}, key: types.NamespacedName{Namespace: "shop", Name: "sleep"}}
		got, err := c.chooseTarget(in, tt.history, tt.to, sleep)
		if got.Version != tt.want || (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: %q, %v; want %q, %q", name, got.Version, err, tt.want, tt.wantErr)
		}
	}
}

func TestInventory(t *testing.T) {
	found := inventory{}
	for _, change := range []func(d *appsv1.Deployment){
		func(d *appsv1.Deployment) { d.Name = "bare" },
		func(d *appsv1.Deployment) {
			d.Name, d.Labels, d.Spec.MinReadySeconds = "good", map[string]string{v1alpha1.VersionLabel: versionA}, 5
			for i := range d.Spec.Template.Spec.Containers {
				d.Spec.Template.Spec.Containers[i].ReadinessProbe = &corev1.Probe{}
			}
		},
		func(d *appsv1.Deployment) {
			d.Name, d.Labels = "out", map[string]string{v1alpha1.DefenseLabel: v1alpha1.DefenseDisabled}
		},
	} {
		if err := found.add(workload.Deployment{}, storedDeployment(t, change)); err != nil {
			t.Fatal(err)
		}
	}
	want := inventory{Baselines: 1, Released: 1, OptedOut: 1, Unprobed: []string{"deployment/bare"}, Hasty: []string{"deployment/bare"}}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	many := make([]string, 25)
	for i := range many {
		many[i] = fmt.Sprintf("d%02d", i)
	}
	if got := named(many); !strings.HasSuffix(got, "d19, and 5 more") {
		t.Errorf("many are named as %q", got)
	}
}

func TestTakenBack(t *testing.T) {
	block := map[string]string{v1alpha1.SuspendLabel: "1"}
	halted := map[string]string{v1alpha1.HaltedAnnotation: "x"}
	haltedAndHeld := map[string]string{v1alpha1.HaltedAnnotation: "x", v1alpha1.HeldAnnotation: "{}"}
	for name, tt := range map[string]struct {
		kind                workload.Kind
		labels, annotations map[string]string
		want                []string
		wantStays           bool
	}{
		"nothing":          {workload.Deployment{}, nil, nil, nil, false},
		"a block":          {workload.Deployment{}, block, map[string]string{v1alpha1.SuspendedByAnnotation: "x"}, []string{"its block"}, false},
		"a user's block":   {workload.Deployment{}, block, nil, nil, true},
		"a pause, a hold":  {workload.Deployment{}, nil, haltedAndHeld, []string{"its pause", "its hold"}, false},
		"of a StatefulSet": {workload.StatefulSet{}, nil, halted, []string{"its halt (partition 2147483647)"}, false},
		"of a DaemonSet":   {workload.DaemonSet{}, nil, halted, []string{"its halt (updateStrategy OnDelete)"}, false},
	} {
		diff := cmp.Diff(tt.want, takenBack(tt.labels, tt.annotations, target{kind: tt.kind}.halts()))
		if diff != "" || staysBlocked(tt.labels, tt.annotations) != tt.wantStays {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
}

func TestSkew(t *testing.T) {
	for name, tt := range map[string]struct {
		own    string
		server ServerVersion
		want   string
	}{
		"the same":      {"v1.2.3", ServerVersion{Images: []string{"ghcr.io/x/y:v1.2.9"}}, ""},
		"another minor": {"v1.2.3", ServerVersion{Images: []string{"ghcr.io/x/y:v1.3.0@sha256:1"}}, "the operator v1.3.0"},
		"with a port":   {"v1.2.3", ServerVersion{Images: []string{"localhost:5000/y"}}, ""},
		"no version":    {"dev", ServerVersion{Images: []string{"y:v1.3.0"}}, ""},
	} {
		got := strings.Join(skew(tt.own, &tt.server), "; ")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestUntil(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "changeworkloads"}, "sleep")
	busy := apierrors.NewServiceUnavailable("busy")
	for name, tt := range map[string]struct {
		// answers are the results of the reads. The last one is repeated.
		answers []error
		// done is the number of the last read.
		done        int
		want        error
		wantTrouble int
	}{
		"at once":                 {[]error{nil}, 1, nil, 0},
		"after a change":          {[]error{nil}, 3, nil, 0},
		"after trouble":           {[]error{nil, busy, busy, errors.New("connection refused"), nil}, 5, nil, 1},
		"an error that stays":     {[]error{gone}, 0, gone, 0},
		"an error with a remedy":  {[]error{remedy(errors.New("no"), "do")}, 0, remedy(errors.New("no"), "do"), 0},
		"nothing happens in time": {[]error{nil}, 0, errTimedOut, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 100})
			api := fake.NewClientBuilder().WithScheme(Scheme()).WithInterceptorFuncs(interceptor.Funcs{
				Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
					return events, nil
				},
			}).Build()
			trouble, reads := 0, 0
			what := []watched{{list: &v1alpha1.ChangeWorkloadList{}}}
			w := &watcher{api: api, timeout: 10 * time.Second, trouble: func(error) { trouble++ }, what: what}
			if errors.Is(tt.want, errTimedOut) {
				w.timeout = 50 * time.Millisecond
			}
			err := w.until(t.Context(), func(context.Context) (bool, error) {
				reads++
				events.Modify(&v1alpha1.ChangeWorkload{})
				return reads == tt.done, tt.answers[min(reads, len(tt.answers))-1]
			})
			if fmt.Sprint(err) != fmt.Sprint(tt.want) || trouble != tt.wantTrouble || tt.done > 0 && reads != tt.done {
				t.Errorf("%v after %d reads, with trouble %d times; want %v after %d, %d times",
					err, reads, trouble, tt.want, tt.done, tt.wantTrouble)
			}
		})
	}
}

// TestUntilAfterSlowReads: after a slow read, whether it failed or not, the next read does not wait as long again.
func TestUntilAfterSlowReads(t *testing.T) {
	for name, slow := range map[string]error{"failed": errors.New("i/o timeout"), "answered": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reads, begin := 0, time.Now()
				err := (&watcher{atLeast: time.Second}).until(t.Context(), func(context.Context) (bool, error) {
					if reads++; reads == 1 {
						time.Sleep(30 * time.Second) //nolint:forbidigo // in the bubble it takes no time
						return false, slow
					}
					return true, nil
				})
				if took := time.Since(begin); err != nil || took > 45*time.Second {
					t.Errorf("%v after %s", err, took)
				}
			})
		})
	}
}
