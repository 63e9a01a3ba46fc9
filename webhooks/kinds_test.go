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
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
)

// kindOfTest is a kind of workload in the tests of admission.
type kindOfTest struct {
	workload.Kind
	// words replace the words for Deployments in texts of the tests.
	words *strings.Replacer
}

var (
	fleets = kindOfTest{Kind: workloadtest.Fleet{}, words: strings.NewReplacer(
		"apps/v1", "example.com/v1", `"Deployment"`, `"Fleet"`, "deployment ", "fleet ", "deployment.kb.io", "fleet.example.com.kb.io",
		`"template":`, `"crew":`, "/spec/template/", "/spec/crew/", `"paused"`, `"anchored"`, "/spec/paused", "/spec/anchored",
	)}
	kindsOfTest = []kindOfTest{{Kind: deployments, words: strings.NewReplacer()}, fleets}
)

// of converts a request for a Deployment into a request for this kind.
func (k kindOfTest) of(req admission.Request) admission.Request {
	gvk := k.GroupVersionKind()
	req.Kind = metav1.GroupVersionKind(gvk)
	req.Resource = metav1.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: k.Resource()}
	req.Object.Raw = []byte(k.manifest(string(req.Object.Raw)))
	if req.OldObject.Raw != nil {
		req.OldObject.Raw = []byte(k.manifest(string(req.OldObject.Raw)))
	}
	return req
}

// stampOfTemplate matches the version label in a template of the tests.
var stampOfTemplate = regexp.MustCompile(`("test":"[^"]*"),"` + regexp.QuoteMeta(v1alpha1.VersionLabel) + `":"[^"]*"`)

// manifest converts the manifest of a Deployment.
func (k kindOfTest) manifest(of string) string {
	if !k.Stamps() {
		of = stampOfTemplate.ReplaceAllString(of, "$1")
	}
	return k.words.Replace(of)
}

// patch converts the operations of a patch of a Deployment.
func (k kindOfTest) patch(operations []string) string {
	if !k.Stamps() {
		operations = slices.DeleteFunc(slices.Clone(operations), func(o string) bool {
			return strings.Contains(o, `"path":"/spec/template/metadata`)
		})
	}
	return k.words.Replace("[" + strings.Join(operations, ",") + "]")
}

// forKinds runs a test with each kind.
func forKinds(t *testing.T, test func(*testing.T, kindOfTest)) {
	t.Helper()
	for _, k := range kindsOfTest {
		t.Run(k.GroupVersionKind().Kind, func(t *testing.T) { test(t, k) })
	}
}

func TestMutating(t *testing.T)        { forKinds(t, testMutating) }
func TestValidating(t *testing.T)      { forKinds(t, testValidating) }
func TestMatchConditions(t *testing.T) { forKinds(t, testMatchConditions) }
func TestPolicy(t *testing.T)          { forKinds(t, testPolicy) }

// manager is a manager whose webhook server has no socket.
type manager struct {
	ctrl.Manager
	server server
}

func (m manager) GetWebhookServer() webhook.Server { return m.server }
func (m manager) GetClient() client.Client         { return nil }

// server is a webhook server that keeps handlers by their paths.
type server struct {
	webhook.Server
	handlers map[string]http.Handler
}

func (s server) Register(path string, handler http.Handler) { s.handlers[path] = handler }

// TestKindsAreServed: the webhooks of each registered kind have names of their own and paths
// that are served.
func TestKindsAreServed(t *testing.T) {
	kinds := workload.NewRegistry(deployments, fleets.Kind)
	s := server{handlers: map[string]http.Handler{}}
	if err := SetupWithManager(manager{server: s}, Options{Kinds: kinds}); err != nil {
		t.Fatal(err)
	}
	var names []string
	hook := func(
		name string, config admissionregistrationv1.WebhookClientConfig, rules []admissionregistrationv1.RuleWithOperations, want string,
	) {
		names = append(names, name+" "+*config.Service.Path)
		if s.handlers[*config.Service.Path] == nil {
			t.Errorf("nothing is served at %s", *config.Service.Path)
		}
		got := strings.Join([]string{rules[0].APIGroups[0], rules[0].APIVersions[0], rules[0].Resources[0]}, "/")
		if len(rules) != 1 || got != want {
			t.Errorf("the rules of %s are %v, want %s", name, rules, want)
		}
	}
	wanted := func(name string) string {
		if strings.Contains(name, "fleet") {
			return "example.com/v1/fleets"
		}
		return "apps/v1/deployments"
	}
	for _, h := range mutatingConfiguration(kinds).Webhooks {
		hook(h.Name, h.ClientConfig, h.Rules, wanted(h.Name))
	}
	for _, h := range validatingConfiguration(kinds).Webhooks {
		hook(h.Name, h.ClientConfig, h.Rules, wanted(h.Name))
	}
	if want := []string{
		"mdeployment.kb.io /mutate-apps-v1-deployment",
		"mfleet.example.com.kb.io /mutate-example-com-v1-fleet",
		"qdeployment.kb.io /quarantine-apps-v1-deployment",
		"vdeployment.kb.io /validate-apps-v1-deployment",
		"pdeployment.kb.io /policy-apps-v1-deployment",
		"qfleet.example.com.kb.io /quarantine-example-com-v1-fleet",
		"vfleet.example.com.kb.io /validate-example-com-v1-fleet",
		"pfleet.example.com.kb.io /policy-example-com-v1-fleet",
	}; !slices.Equal(names, want) {
		t.Errorf("the webhooks are %q, want %q", names, want)
	}
	if len(s.handlers) != len(names)+4 { // and the paths of declared kinds
		t.Errorf("%d paths are served for %d webhooks and those of declared kinds", len(s.handlers), len(names))
	}
}

// TestQuarantined: a version that was rolled back is denied without an override.
func TestQuarantined(t *testing.T) {
	forKinds(t, func(t *testing.T, k kindOfTest) {
		before := annotatedWith(released(""), v1alpha1.QuarantinedAnnotation, repairVersion)
		after := strings.Replace(before, `"123"`, `"1234"`, 1)
		answer := review(t, newQuarantine(Options{}, k), k.of(makeRequest(before, after)))
		want := k.words.Replace("deployment sleep: version " + repairVersion + " was rolled back")
		if answer.Allowed || !strings.Contains(answer.Result.Message, want) {
			t.Errorf("%+v", answer)
		}
		overriding := strings.Replace(after, `"labels":{`, `"labels":{`+labelled(v1alpha1.IgnoredSuspendLabel, "true"), 1)
		overridden := k.of(makeRequest(before, overriding))
		mutated := review(t, mutatingOf(Options{}, k), overridden)
		overridden.Object.Raw = applyPatch(t, string(overridden.Object.Raw), mutated.Patch)
		if answer := review(t, newQuarantine(Options{}, k), overridden); !answer.Allowed {
			t.Errorf("denied with an override: %+v", answer.Result)
		}
	})
}

// TestOtherKindsAreNoConcern: a webhook allows requests that its rules do not select.
func TestOtherKindsAreNoConcern(t *testing.T) {
	blocked := released(labelled(v1alpha1.SuspendLabel, "1"))
	req := makeRequest(blocked, strings.Replace(blocked, `"123"`, `"1234"`, 1))
	group, operation := fleets.of(req), fleets.of(req)
	group.Resource.Group = "example.org"
	o := withPolicies(policyOf("default", "no", "false"))
	operation.Operation = admissionv1.Delete
	for name, req := range map[string]admission.Request{"another kind": req, "another group": group, "a deletion": operation} {
		for what, h := range map[string]handler{
			"mutate":     mutatingOf(Options{}, fleets),
			"validate":   newValidating(Options{}, fleets),
			"quarantine": newQuarantine(Options{}, fleets),
			"policy":     newPolicy(o, fleets, newEvaluator(&o)),
		} {
			if answer := review(t, h, req); !answer.Allowed || answer.Patch != nil {
				t.Errorf("%s, %s: %+v", name, what, answer)
			}
		}
	}
}

// TestGateOfAnotherKind: a question to AlterShield Server names the kind of the workload.
func TestGateOfAnotherKind(t *testing.T) {
	f := &fakeChecker{}
	review(t, mutatingOf(f.options(), fleets), fleets.of(makeRequest(released(""), released2(""))))
	if asked := f.asked(); len(asked) != 1 || asked[0].Kind != "fleet" ||
		asked[0].Version != repairVersion || !slices.Equal(asked[0].Images, []string{"busybox"}) {
		t.Errorf("asked %+v", asked)
	}
}
