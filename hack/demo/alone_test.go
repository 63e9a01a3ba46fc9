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

package main

import (
	"context"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// newSight is a release of two pods that has succeeded, and is watched.
func newSight(with func(*sight)) *sight {
	s := &sight{
		deployment: appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.VersionLabel: "good"}},
			Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
			Status:     appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2},
		},
		change: v1alpha1.ChangeWorkload{ObjectMeta: metav1.ObjectMeta{Name: "web--x--good"}, Spec: v1alpha1.ChangeWorkloadSpec{Reversion: "good"}},
	}
	s.change.Status.Status = v1alpha1.ChangeWorkloadSuccess
	for _, name := range []string{"one", "two"} {
		b := v1alpha1.ChangePod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		b.Status.Checks = []v1alpha1.CheckStatus{{Name: "other", Phase: v1alpha1.CheckPassed}, {Name: staysUp, Phase: v1alpha1.CheckWatching}}
		s.batches = append(s.batches, b)
	}
	s.changes = []v1alpha1.ChangeWorkload{s.change, {ObjectMeta: metav1.ObjectMeta{Name: "web--x--bad"}, Status: v1alpha1.ChangeWorkloadStatus{Status: v1alpha1.ChangeWorkloadRollback}}}
	if with != nil {
		with(s)
	}
	return s
}

// failing is the same release, suspended for its second pod.
func failing(with func(*sight)) *sight {
	s := newSight(func(s *sight) {
		s.change.Status.Status = v1alpha1.ChangeWorkloadSuspend
		s.deployment.Labels[v1alpha1.SuspendLabel] = "1700000000"
		s.deployment.Status.ReadyReplicas = 0
		s.change.Status.DefenseCheckFailPods = []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: "web-2"}, Verdict: "fail", Message: staysUp + ": pod web-2: container web crashes again and again"}}
		s.batches[1].Status.Checks[1] = v1alpha1.CheckStatus{Name: staysUp, Phase: v1alpha1.CheckFailed, FailedPods: []string{"web-2"}}
	})
	if with != nil {
		with(s)
	}
	return s
}

// held is the same release, whose rollout waits for the verdict on its first pod.
func held(with func(*sight)) *sight {
	s := newSight(func(s *sight) {
		s.change.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionHeld, Status: metav1.ConditionTrue}}
		s.deployment.Status = appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 1, ReadyReplicas: 3, AvailableReplicas: 2}
	})
	if with != nil {
		with(s)
	}
	return s
}

// A pod that was replaced is not the same, whatever its name.
func TestKeptPods(t *testing.T) {
	before := map[string]types.UID{"one": "1", "two": "2", "three": "3"}
	for want, after := range []map[string]types.UID{{"one": "4", "four": "1"}, {"one": "1", "two": "5"}, {"one": "1", "two": "2", "four": "6"}, before} {
		if got := keptPods(before, after); got != want {
			t.Errorf("%d of %v are kept in %v, want %d", got, before, after, want)
		}
	}
}

// The chapter ends with an error where what is to be seen is not what it tells.
func TestSight(t *testing.T) {
	passed := func(s *sight) error { return s.passed(staysUp, v1alpha1.CheckWatching) }
	failed := func(s *sight) error { return s.failed(staysUp, "crashes again and again") }
	restored := func(s *sight) error { return s.restored("web--x--bad", "good") }
	waits := (*sight).waits
	tests := map[string]struct {
		sight *sight
		judge func(*sight) error
		// wrong is what the error says; empty for none.
		wrong string
	}{
		"succeeds":                {newSight(nil), passed, ""},
		"is suspended":            {failing(nil), passed, "in state Suspend"},
		"has not begun":           {newSight(func(s *sight) { s.change = v1alpha1.ChangeWorkload{} }), passed, "in state Init"},
		"a pod crashes":           {newSight(func(s *sight) { s.deployment.Status.ReadyReplicas = 1 }), passed, "goes on"},
		"an old pod is left":      {newSight(func(s *sight) { s.deployment.Status.Replicas = 3 }), passed, "goes on"},
		"blocked":                 {newSight(func(s *sight) { s.deployment.Labels[v1alpha1.SuspendLabel] = "1" }), passed, "blocked"},
		"no batch":                {newSight(func(s *sight) { s.batches = nil }), passed, "no pod"},
		"a batch is not watched":  {newSight(func(s *sight) { s.batches[1].Status.Checks = s.batches[1].Status.Checks[:1] }), passed, "batch two"},
		"a batch passed already":  {newSight(func(s *sight) { s.batches[0].Status.Checks[1].Phase = v1alpha1.CheckPassed }), passed, "batch one"},
		"fails":                   {failing(nil), failed, ""},
		"is not caught":           {newSight(nil), failed, "not suspended"},
		"is not blocked":          {failing(func(s *sight) { delete(s.deployment.Labels, v1alpha1.SuspendLabel) }), failed, "not blocked"},
		"no pod is named":         {failing(func(s *sight) { s.change.Status.DefenseCheckFailPods = nil }), failed, "no pod"},
		"for another reason":      {failing(func(s *sight) { s.change.Status.DefenseCheckFailPods[0].Message = staysUp + ": pod web-2: not Ready" }), failed, "without"},
		"by another check":        {failing(func(s *sight) { s.change.Status.DefenseCheckFailPods[0].Message = "find error" }), failed, "without"},
		"another pod in the text": {failing(func(s *sight) { s.change.Status.DefenseCheckFailPods[0].Pod = "web-1" }), failed, "without"},
		"no batch tells of it":    {failing(func(s *sight) { s.batches[1].Status.Checks[1].FailedPods = []string{"web-1"} }), failed, "no batch"},
		"restored":                {newSight(nil), restored, ""},
		"is left as it is":        {newSight(func(s *sight) { s.changes[1].Status.Status = v1alpha1.ChangeWorkloadSuspend }), restored, "not rolled back"},
		"is forgotten":            {newSight(func(s *sight) { s.changes = s.changes[:1] }), restored, "not listed"},
		"waits":                   {held(nil), waits, ""},
		"is not held":             {held(func(s *sight) { s.change.Status.Conditions = nil }), waits, "does not say"},
		"is not held any more":    {held(func(s *sight) { s.change.Status.Conditions[0].Status = metav1.ConditionFalse }), waits, "does not say"},
		"is not seen yet":         {held(func(s *sight) { s.deployment.Generation = 2 }), waits, "not begun"},
		"has no pod yet":          {held(func(s *sight) { s.deployment.Status.UpdatedReplicas = 0 }), waits, "not begun"},
		"is all replaced":         {held(func(s *sight) { s.deployment.Status.UpdatedReplicas, s.deployment.Status.Replicas = 2, 2 }), waits, "did not wait"},
		"its pod is not Ready":    {held(func(s *sight) { s.deployment.Status.ReadyReplicas = 2 }), waits, "2 of 3"},
		"goes to another version": {newSight(func(s *sight) { s.deployment.Labels[v1alpha1.VersionLabel] = "older" }), restored, "at version older"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.judge(tc.sight)
			if tc.wrong == "" && err != nil || tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)) {
				t.Errorf("error %v, want %q", err, tc.wrong)
			}
		})
	}
}

// The app answers with the status that it is given, at the port that its policy names.
func TestApp(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, ".demo")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	a := listen(t.Context(), dir, netip.MustParseAddr("127.0.0.1"))
	if a == nil {
		t.Fatal("it does not listen")
	}
	answer := func() int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+a.address.String()+"/healthz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	got := []int{answer()}
	a.status.Store(http.StatusServiceUnavailable)
	got = append(got, answer())
	if !slices.Equal(got, []int{200, 503}) {
		t.Errorf("answers %v", got)
	}
	path, err := a.policy(root)
	if err != nil || path != filepath.Join(".demo", "answers.yaml") {
		t.Fatalf("policy at %q: %v", path, err)
	}
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	var p v1alpha1.DefensePolicy
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		t.Fatal(err)
	}
	if c := p.Spec.Checks[0]; p.Namespace+"/"+p.Name+"/"+c.Name != smoke || uint16(c.Probe.HTTP.Port) != a.address.Port() {
		t.Errorf("policy:\n%s", data)
	}
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	if err := (*app)(nil).stop(); err != nil {
		t.Error(err)
	}
	if a := listen(context.Background(), dir, netip.MustParseAddr("203.0.113.7")); a != nil {
		t.Errorf("it listens at an address of another machine: %s", a.address)
	}
}
