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

package webhooks

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	decide "github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// update is a change of a Deployment: labels, annotations and owners of the old and the new
// object.
type update struct {
	oldLabels, oldAnnotations, labels, annotations map[string]string
	oldOwners, owners                              []metav1.OwnerReference
	release                                        bool
}

// raw returns the objects as an API server sends them.
func (u update) raw(t *testing.T) (before, after string) {
	t.Helper()
	marshal := func(labels, annotations map[string]string, owners []metav1.OwnerReference) string {
		metadata, err := json.Marshal(metav1.ObjectMeta{
			Name: "sleep", Namespace: "default", ResourceVersion: "77", Labels: labels, Annotations: annotations, OwnerReferences: owners,
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(metadata)
	}
	template := sleepLabels
	if u.release {
		template = repairLabels
	}
	before = manifest(marshal(u.oldLabels, u.oldAnnotations, u.oldOwners), sleepLabels)
	return before, manifest(marshal(u.labels, u.annotations, u.owners), template)
}

// owned returns copies of a change in which other objects own the workload before it, after
// it, or both, with and without the label that defends an owned workload.
func (u update) owned() []update {
	ref := func(name string, controller *bool) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Owner", Name: name, UID: types.UID(name), Controller: controller}
	}
	plain, no, yes := ref("plain", nil), ref("no", ptr.To(false)), ref("yes", ptr.To(true))
	var all []update
	for _, owners := range []struct{ before, after []metav1.OwnerReference }{
		{[]metav1.OwnerReference{yes}, []metav1.OwnerReference{yes}},
		{nil, []metav1.OwnerReference{plain, no, yes}},
		{[]metav1.OwnerReference{yes}, nil},
		{[]metav1.OwnerReference{yes}, []metav1.OwnerReference{plain, no}},
	} {
		for _, defend := range []struct{ before, after string }{
			{}, {"", v1alpha1.DefenseEnforced}, {v1alpha1.DefenseEnforced, ""}, {v1alpha1.DefenseEnforced, v1alpha1.DefenseEnforced}, {"", "other"},
		} {
			with := u
			with.oldOwners, with.owners = owners.before, owners.after
			with.oldLabels, with.labels = maps.Clone(u.oldLabels), maps.Clone(u.labels)
			for labels, value := range map[*map[string]string]string{&with.oldLabels: defend.before, &with.labels: defend.after} {
				if value == "" {
					continue
				}
				if *labels == nil {
					*labels = map[string]string{}
				}
				(*labels)[v1alpha1.DefenseLabel] = value
			}
			all = append(all, with)
		}
	}
	return all
}

// updates returns all combinations of the values that the webhooks decide by.
func updates() []update {
	all := []update{{}, {release: true}}
	// vary adds a copy of each change for each value of a key.
	vary := func(keys func(u *update) *map[string]string, key string, values ...string) {
		var more []update
		for _, u := range all {
			for _, value := range values {
				with := u
				changed := keys(&with)
				*changed = maps.Clone(*changed)
				if *changed == nil {
					*changed = map[string]string{}
				}
				(*changed)[key] = value
				more = append(more, with)
			}
		}
		all = append(all, more...)
	}
	oldLabels := func(u *update) *map[string]string { return &u.oldLabels }
	oldAnnotations := func(u *update) *map[string]string { return &u.oldAnnotations }
	labels := func(u *update) *map[string]string { return &u.labels }
	annotations := func(u *update) *map[string]string { return &u.annotations }
	// A user may set a block without a value.
	vary(oldLabels, v1alpha1.SuspendLabel, "1764000000", "")
	vary(oldLabels, v1alpha1.IgnoredSuspendLabel, "true", "yes")
	vary(oldAnnotations, v1alpha1.OverrideStaleAnnotation, "true")
	vary(oldAnnotations, v1alpha1.QuarantinedAnnotation, repairVersion)
	vary(labels, v1alpha1.SuspendLabel, "1764000000", "1764000001", "")
	vary(labels, v1alpha1.IgnoredSuspendLabel, "true", "yes")
	vary(labels, v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)
	vary(annotations, v1alpha1.OverrideAnnotation, repairVersion+" 77 jane", repairVersion+" 76 jane", "nonsense")
	return all
}

// matcher returns the match conditions of a webhook, compiled as in an API server.
func matcher(t *testing.T, kind workload.Kind, name string) matchconditions.Matcher {
	t.Helper()
	compiler := cel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	for _, hook := range validatingConfiguration(workload.NewRegistry(kind)).Webhooks {
		if hook.Name == name {
			return webhook.NewValidatingWebhookAccessor(name, "validating", &hook).GetCompiledMatcher(compiler)
		}
	}
	t.Fatalf("no webhook is named %s", name)
	return nil
}

// matches reports whether an API server calls the webhook of a matcher.
func matches(t *testing.T, of workload.Kind, m matchconditions.Matcher, before, after []byte) bool {
	t.Helper()
	var objects [2]runtime.Object
	for i, raw := range [][]byte{before, after} {
		if raw == nil {
			continue
		}
		// In an API server, empty labels and annotations are missing.
		u := &unstructured.Unstructured{}
		objects[i] = u
		if of == deployments {
			objects[i] = &appsv1.Deployment{}
		}
		if err := json.Unmarshal(raw, objects[i]); err != nil {
			t.Fatal(err)
		}
		if of != deployments {
			u.SetLabels(u.GetLabels())
			u.SetAnnotations(u.GetAnnotations())
		}
	}
	kind, operation := of.GroupVersionKind(), admission.Update
	if before == nil {
		operation = admission.Create
	}
	attributes, err := admission.NewVersionedAttributes(admission.NewAttributesRecord(
		objects[1], objects[0], kind, "default", "sleep", kind.GroupVersion().WithResource(of.Resource()), "", operation, nil, false,
		&user.DefaultInfo{Name: "jane"},
	), kind, nil)
	if err != nil {
		t.Fatal(err)
	}
	result := m.Match(t.Context(), attributes, nil, nil)
	if result.Error != nil {
		t.Fatalf("%s\nbecame\n%s\n%v", before, after, result.Error)
	}
	return result.Matches
}

// testMatchConditions evaluates the match conditions as an API server does: the webhook of the
// block is called exactly for the requests that package admission denies. The webhook of the
// quarantine may be called for more, because it also knows blocks and overrides.
func testMatchConditions(t *testing.T, k kindOfTest) {
	block, quarantine := matcher(t, k, k.words.Replace("vdeployment.kb.io")), matcher(t, k, k.words.Replace("qdeployment.kb.io"))
	policy := matcher(t, k, k.words.Replace("pdeployment.kb.io"))
	blocked, quarantined, checked, observed := 0, 0, 0, 0
	for _, u := range updates() {
		before, after := u.raw(t)
		req := k.of(makeRequest(before, after))
		request, _, _, err := read(&req, &Options{}, k)
		if err != nil {
			t.Fatal(err)
		}
		denies := !decide.Validate(request).Allowed
		// A request that opts out is allowed, and its webhook is called.
		defended := request
		defended.New.Labels = without(request.New.Labels, v1alpha1.DefenseLabel)
		asked := !decide.Validate(defended).Allowed
		if got := matches(t, k.Kind, block, req.OldObject.Raw, req.Object.Raw); got != asked {
			t.Errorf("the block denies: %t, its webhook is called: %t\n%+v", denies, got, u)
		}
		asks := !decide.ValidateQuarantine(request).Allowed
		got := matches(t, k.Kind, quarantine, req.OldObject.Raw, req.Object.Raw)
		if asks && !got || got && !request.NeedsOverride() {
			t.Errorf("the quarantine denies: %t, its webhook is called: %t\n%+v", asks, got, u)
		}
		if got := matches(t, k.Kind, policy, req.OldObject.Raw, req.Object.Raw); got != defended.IsChecked() {
			t.Errorf("policies count: %t, their webhook is called: %t\n%+v", defended.IsChecked(), got, u)
		} else if got {
			checked++
		}
		if denies {
			blocked++
			if blocked%10 == 0 {
				observed += testOwned(t, k, block, u)
			}
		}
		if asks {
			quarantined++
		}
	}
	created := makeRequest("", manifest(`{"name":"sleep"}`, sleepLabels))
	created = k.of(created)
	if !matches(t, k.Kind, policy, nil, created.Object.Raw) {
		t.Error("the webhook for policies is not called at a creation")
	}
	if blocked == 0 || quarantined == 0 || checked == 0 || observed == 0 {
		t.Errorf("%d changes denied by the block, %d by the quarantine, %d for policies, %d in observe mode: the test tests nothing",
			blocked, quarantined, checked, observed)
	}
	t.Logf("%d changes: %d denied by the block, %d by the quarantine", len(updates()), blocked, quarantined)
}

func without(labels map[string]string, key string) map[string]string {
	labels = maps.Clone(labels)
	delete(labels, key)
	return labels
}

// testOwned adds owners to a change that the block denies: its webhook is called only if it
// still denies, so that an owner can always change a workload in observe mode. It returns how
// often the webhook is not called.
func testOwned(t *testing.T, k kindOfTest, block matchconditions.Matcher, denied update) (observed int) {
	t.Helper()
	for _, u := range denied.owned() {
		before, after := u.raw(t)
		req := k.of(makeRequest(before, after))
		answer := review(t, newValidating(Options{}, k), req)
		if got := matches(t, k.Kind, block, req.OldObject.Raw, req.Object.Raw); got == answer.Allowed {
			t.Errorf("the block denies: %t, its webhook is called: %t\n%+v", !answer.Allowed, got, u)
		} else if !got {
			observed++
		}
	}
	return observed
}

// readOf returns the parts of an object that a match condition reads.
func readOf(object, expression string) (parts []string) {
	const path = `\.(metadata\.resourceVersion|metadata\.\?ownerReferences|spec\.template|metadata\.\?(?:labels|annotations)\['[^']+'\])`
	keyed := regexp.MustCompile(`'([^']+)' in (oldObject|object)\.metadata\.\?(labels|annotations)\.orValue\(\{\}\)`)
	expression = keyed.ReplaceAllString(expression, "$2.metadata.?$3['$1']")
	for _, found := range regexp.MustCompile(`(?:^|[^\w.])`+object+path).FindAllStringSubmatch(expression, -1) {
		part := found[1]
		if kind, key, ok := strings.Cut(strings.TrimSuffix(part, "']"), "['"); ok {
			part = strings.TrimSuffix(strings.TrimPrefix(kind, "metadata.?"), "s") + " `" + key[strings.LastIndex(key, "/")+1:] + "`"
		} else {
			part = "`" + strings.TrimPrefix(strings.TrimPrefix(part, "metadata."), "?") + "`"
		}
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	slices.Sort(parts)
	return parts
}

// TestMatchConditionsRead compares the match conditions with their table in docs/design.md. A
// condition that excludes requests, by its name, reads both objects.
func TestMatchConditionsRead(t *testing.T) {
	notes, err := os.ReadFile("../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, hook := range mutatingConfiguration(workload.Defended()).Webhooks {
		if len(hook.MatchConditions) > 0 {
			t.Errorf("%s has match conditions: describe them", hook.Name)
		}
	}
	rows := 0
	for _, hook := range validatingConfiguration(workload.NewRegistry(deployments)).Webhooks {
		for _, c := range hook.MatchConditions {
			stored, wanted := readOf("oldObject", c.Expression), readOf("object", c.Expression)
			row := fmt.Sprintf("| `%s` | `%s` | %s | %s |", hook.Name, c.Name, strings.Join(stored, ", "), strings.Join(wanted, ", "))
			if rows++; !strings.Contains(string(notes), row+"\n") {
				t.Errorf("the design notes lack\n%s", row)
			}
			if strings.Contains(c.Name, "not-") || strings.Contains(c.Name, "nor-") {
				for _, part := range []string{"label `defense`", "`ownerReferences`"} {
					if slices.Contains(stored, part) != slices.Contains(wanted, part) {
						t.Errorf("%s of %s excludes requests, and does not read %s of both objects", c.Name, hook.Name, part)
					}
				}
			}
		}
	}
	if rows == 0 {
		t.Error("there are no match conditions: the test tests nothing")
	}
}
