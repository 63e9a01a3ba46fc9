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
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/intercept"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	self = "system:serviceaccount:altershieldoperator-system:controller-manager"

	sleepVersion  = "c6c45d23c098bdf181853a85b60b5d74"
	repairVersion = "6a8ff823a5011291b0f02a1d83c2222d"

	// podSpec is the pod spec of the walkthrough, as an API server sends it.
	podSpec = `{"containers":[{"name":"sleep","image":"busybox","command":["/bin/sleep","infinity"],"resources":{},` +
		`"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}],` +
		`"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{},` +
		`"schedulerName":"default-scheduler"}`
)

// deployments is the kind of most tests.
var deployments = workload.Deployment{}

// manifest returns a Deployment with this metadata and these labels of its template.
func manifest(metadata, templateLabels string) string {
	return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":` + metadata +
		`,"spec":{"replicas":5,"selector":{"matchLabels":{"app":"sleep"}},` +
		`"template":{"metadata":{"labels":` + templateLabels + `},"spec":` + podSpec + `}},"status":{}}`
}

const (
	sleepLabels  = `{"app":"sleep","test":"123"}`
	repairLabels = `{"app":"sleep","test":"1234"}`
)

// released returns sleep after its first release, with more labels.
func released(more string) string {
	return manifest(
		`{"name":"sleep","namespace":"default","resourceVersion":"77",`+
			`"labels":{`+more+`"`+v1alpha1.VersionLabel+`":"`+sleepVersion+`"},"annotations":{"`+v1alpha1.ReleaseAnnotation+`":"1"}}`,
		`{"app":"sleep","test":"123","`+v1alpha1.VersionLabel+`":"`+sleepVersion+`"}`)
}

// labelled returns a label for released.
func labelled(key, value string) string { return fmt.Sprintf("%q:%q,", key, value) }

func makeRequest(before, after string) admission.Request {
	req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID:       "1",
		Operation: admissionv1.Create,
		Kind:      metav1.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		Resource:  metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		Namespace: "default",
		Name:      "sleep",
		UserInfo:  authenticationv1.UserInfo{Username: "jane"},
		Object:    runtime.RawExtension{Raw: []byte(after)},
		Options:   runtime.RawExtension{Raw: []byte(`{"apiVersion":"meta.k8s.io/v1","kind":"UpdateOptions","fieldManager":"kubectl"}`)},
	}}
	if before != "" {
		req.Operation = admissionv1.Update
		req.OldObject.Raw = []byte(before)
	}
	return req
}

// review sends a request in the wire format, and returns the response.
func review(t testing.TB, h admission.Handler, req admission.Request) admissionv1.AdmissionResponse {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request:  &req.AdmissionRequest,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	(&admission.Webhook{Handler: h}).ServeHTTP(recorder, r)
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Response == nil || answer.Response.UID != req.UID {
		t.Fatalf("no response to the request in %s", recorder.Body)
	}
	return *answer.Response
}

func testMutating(t *testing.T, k kindOfTest) {
	const (
		version = "admission-webhook-altershield.antgroup.com~1version"
		prefix  = "altershield.defense.antgroup.com~1"
		name    = `{"name":"sleep"}`
		labels  = `{"` + v1alpha1.VersionLabel + `":"` + sleepVersion + `"`
		bare    = `{"name":"sleep","labels":{"a":"b"},"annotations":{"a":"b"}}`
	)
	paused, halted := `"replicas":5,"paused":true`, `"annotations":{`+labelled(v1alpha1.HaltedAnnotation, sleepVersion)
	tests := map[string]struct {
		before, after string
		edit          func(*admission.Request)
		// want is the patch, one operation a line.
		want []string
	}{
		"created without labels": {
			after: manifest(name, sleepLabels),
			want: []string{
				`{"op":"add","path":"/metadata/labels","value":{"` + v1alpha1.VersionLabel + `":"` + sleepVersion + `"}}`,
				`{"op":"add","path":"/metadata/annotations","value":{"` + v1alpha1.ReleaseAnnotation + `":"1"}}`,
				`{"op":"add","path":"/spec/template/metadata/labels/` + version + `","value":"` + sleepVersion + `"}`,
			},
		},
		"created with null and empty maps": {
			after: manifest(`{"name":"sleep","labels":null,"annotations":{}}`, sleepLabels),
			want: []string{
				`{"op":"add","path":"/metadata/labels","value":{"` + v1alpha1.VersionLabel + `":"` + sleepVersion + `"}}`,
				`{"op":"add","path":"/metadata/annotations/` + prefix + `release","value":"1"}`,
				`{"op":"add","path":"/spec/template/metadata/labels/` + version + `","value":"` + sleepVersion + `"}`,
			},
		},
		"created from a clone": {
			after: released(labelled(v1alpha1.SuspendLabel, "1")),
			want:  []string{`{"op":"remove","path":"/metadata/labels/` + prefix + `suspend"}`},
		},
		"template without labels": {
			after: manifest(bare, `null`),
			want: []string{
				`{"op":"add","path":"/metadata/labels/` + version + `","value":"$V"}`,
				`{"op":"add","path":"/metadata/annotations/` + prefix + `release","value":"1"}`,
				`{"op":"add","path":"/spec/template/metadata/labels","value":{"` + v1alpha1.VersionLabel + `":"$V"}}`,
			},
		},
		"template with null metadata": {
			after: strings.Replace(manifest(bare, sleepLabels), `{"labels":`+sleepLabels+`}`, `null`, 1),
			want: []string{
				`{"op":"add","path":"/metadata/labels/` + version + `","value":"$V"}`,
				`{"op":"add","path":"/metadata/annotations/` + prefix + `release","value":"1"}`,
				`{"op":"add","path":"/spec/template/metadata","value":{"labels":{"` + v1alpha1.VersionLabel + `":"$V"}}}`,
			},
		},
		"template without metadata": {
			after: strings.Replace(manifest(bare, sleepLabels), `"metadata":{"labels":`+sleepLabels+`},`, ``, 1),
			want: []string{
				`{"op":"add","path":"/metadata/labels/` + version + `","value":"$V"}`,
				`{"op":"add","path":"/metadata/annotations/` + prefix + `release","value":"1"}`,
				`{"op":"add","path":"/spec/template/metadata","value":{"labels":{"` + v1alpha1.VersionLabel + `":"$V"}}}`,
			},
		},
		"nothing changes": {before: released(""), after: strings.Replace(released(""), `"replicas":5`, `"replicas":6`, 1)},
		"replaced by the manifest": {
			before: released(labelled(v1alpha1.DefenseStatusLabel, "processed")),
			after:  manifest(name, sleepLabels),
			want: []string{
				`{"op":"add","path":"/metadata/labels","value":` + labels + `,"` + v1alpha1.DefenseStatusLabel + `":"processed"}}`,
				`{"op":"add","path":"/metadata/annotations","value":{"` + v1alpha1.ReleaseAnnotation + `":"1"}}`,
				`{"op":"add","path":"/spec/template/metadata/labels/` + version + `","value":"` + sleepVersion + `"}`,
			},
		},
		"released": {
			before: released(labelled(v1alpha1.DefenseStatusLabel, "processed")),
			after:  strings.Replace(released(labelled(v1alpha1.DefenseStatusLabel, "processed")), `"123"`, `"1234"`, 1),
			want: []string{
				`{"op":"replace","path":"/metadata/labels/` + version + `","value":"` + repairVersion + `"}`,
				`{"op":"remove","path":"/metadata/labels/` + prefix + `defense-status"}`,
				`{"op":"replace","path":"/metadata/annotations/` + prefix + `release","value":"2"}`,
				`{"op":"replace","path":"/spec/template/metadata/labels/` + version + `","value":"` + repairVersion + `"}`,
			},
		},
		"overridden while halted": {
			before: strings.NewReplacer(`"replicas":5`, paused, `"annotations":{`, halted).
				Replace(released(labelled(v1alpha1.SuspendLabel, "1"))),
			after: strings.NewReplacer(`"replicas":5`, paused, `"123"`, `"1234"`, `"annotations":{`, halted).
				Replace(released(labelled(v1alpha1.SuspendLabel, "1") + labelled(v1alpha1.IgnoredSuspendLabel, "true"))),
			want: []string{
				`{"op":"replace","path":"/metadata/labels/` + version + `","value":"` + repairVersion + `"}`,
				`{"op":"remove","path":"/metadata/labels/` + prefix + `ignored-suspend"}`,
				`{"op":"remove","path":"/metadata/annotations/` + prefix + `halted"}`,
				`{"op":"add","path":"/metadata/annotations/` + prefix + `override","value":"` + repairVersion + ` 77 jane"}`,
				`{"op":"replace","path":"/metadata/annotations/` + prefix + `release","value":"2"}`,
				`{"op":"replace","path":"/spec/template/metadata/labels/` + version + `","value":"` + repairVersion + `"}`,
				`{"op":"remove","path":"/spec/paused"}`,
			},
		},
		"rolled back by the operator": {
			before: released(""),
			after: manifest(
				`{"name":"sleep","labels":`+labels+`},"annotations":{"`+v1alpha1.ReleaseAnnotation+`":"1"}}`, repairLabels),
			edit: func(req *admission.Request) {
				req.UserInfo.Username = self
				req.Options.Raw = []byte(`{"kind":"PatchOptions","fieldManager":"altershield-operator"}`)
			},
			want: []string{
				`{"op":"replace","path":"/metadata/labels/` + version + `","value":"` + repairVersion + `"}`,
				`{"op":"replace","path":"/metadata/annotations/` + prefix + `release","value":"2"}`,
			},
		},
		"not the operator: another field manager": {
			before: released(""), after: strings.Replace(released(""), sleepVersion, "x", 1),
			edit: func(req *admission.Request) { req.UserInfo.Username = self },
			want: []string{`{"op":"replace","path":"/metadata/labels/` + version + `","value":"` + sleepVersion + `"}`},
		},
		"not the operator: another user": {
			before: released(""), after: strings.Replace(released(""), sleepVersion, "x", 1),
			edit: func(req *admission.Request) {
				req.Options.Raw = []byte(`{"fieldManager":"altershield-operator"}`)
			},
			want: []string{`{"op":"replace","path":"/metadata/labels/` + version + `","value":"` + sleepVersion + `"}`},
		},
		"not the operator: no options": {
			before: released(""), after: strings.Replace(released(""), sleepVersion, "x", 1),
			edit: func(req *admission.Request) { req.UserInfo.Username, req.Options.Raw = self, nil },
			want: []string{`{"op":"replace","path":"/metadata/labels/` + version + `","value":"` + sleepVersion + `"}`},
		},
		"opted out": {
			after: manifest(`{"name":"sleep","labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}`, sleepLabels),
		},
		"deleting": {
			before: released(""), after: manifest(`{"name":"sleep","deletionTimestamp":"2024-01-01T00:00:00Z"}`, repairLabels),
		},
		"subresource": {
			before: released(""), after: `{"kind":"Scale"}`,
			edit: func(req *admission.Request) { req.SubResource = "scale" },
		},
		"another resource": {
			after: manifest(name, sleepLabels),
			edit:  func(req *admission.Request) { req.Resource.Resource = "statefulsets" },
		},
		"deletion": {
			before: released(""), after: "null",
			edit: func(req *admission.Request) { req.Operation = admissionv1.Delete },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			req := k.of(makeRequest(tt.before, tt.after))
			if tt.edit != nil {
				tt.edit(&req)
			}
			log := funcr.New(func(_, args string) { t.Error("logged", args) }, funcr.Options{})
			response := review(t, mutatingOf(Options{Self: self, Log: log}, k), req)
			if !response.Allowed {
				t.Fatal("denied:", response.Result)
			}
			if len(tt.want) == 0 {
				if response.Patch != nil {
					t.Fatalf("patch %s, want none", response.Patch)
				}
				return
			}
			patched := applyPatch(t, string(req.Object.Raw), response.Patch)
			o, err := parse(patched, k)
			if err != nil {
				t.Fatal(err)
			}
			want := strings.ReplaceAll(k.patch(tt.want), "$V", o.Version)
			if diff := cmp.Diff(decode(t, []byte(want)), withoutReleasedBy(decode(t, response.Patch))); diff != "" {
				t.Error("patch (-want +got):\n", diff)
			}
			// The API server may call the webhook again.
			req.Object.Raw = patched
			if again := review(t, mutatingOf(Options{Self: self}, k), req); again.Patch != nil {
				t.Errorf("called again: patch %s, want none", again.Patch)
			}
		})
	}
}

// withoutReleasedBy removes the annotation that names the user from a patch.
func withoutReleasedBy(patch any) any {
	operations, ok := patch.([]any)
	if !ok {
		return patch
	}
	return slices.DeleteFunc(operations, func(o any) bool {
		operation, ok := o.(map[string]any)
		if value, isMap := operation["value"].(map[string]any); isMap {
			delete(value, v1alpha1.ReleasedByAnnotation)
		}
		path, _ := operation["path"].(string)
		return ok && strings.HasSuffix(path, strings.ReplaceAll(v1alpha1.ReleasedByAnnotation, "/", "~1"))
	})
}

func applyPatch(t *testing.T, document string, operations []byte) []byte {
	t.Helper()
	p, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		t.Fatal(err)
	}
	patched, err := p.Apply([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return patched
}

func decode(t *testing.T, data []byte) any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestMutatingKeepsUnknownFields: a release keeps fields of a future API server.
func TestMutatingKeepsUnknownFields(t *testing.T) {
	future := strings.NewReplacer(
		`"replicas":5`, `"replicas":5,"future":{"n":9007199254740993}`,
		`"dnsPolicy"`, `"future":[{"f":1.50}],"dnsPolicy"`,
		`"image"`, `"future":{},"image"`,
		`"status":{}`, `"status":{"future":null}`,
	).Replace
	after := future(strings.Replace(released(""), `"123"`, `"1234"`, 1))
	response := review(t, mutatingOf(Options{}, deployments), makeRequest(future(released("")), after))
	o, err := parse([]byte(after), deployments)
	if err != nil {
		t.Fatal(err)
	}
	if o.Version == repairVersion {
		t.Error("unknown fields do not count for the version")
	}
	want := strings.NewReplacer(sleepVersion, o.Version, v1alpha1.ReleaseAnnotation+`":"1"`, v1alpha1.ReleaseAnnotation+`":"2"`).Replace(after)
	patched := strings.Replace(string(applyPatch(t, after, response.Patch)), `,"`+v1alpha1.ReleasedByAnnotation+`":"jane"`, "", 1)
	if diff := cmp.Diff(decode(t, []byte(want)), decode(t, []byte(patched))); diff != "" {
		t.Error(diff)
	}
}

func testValidating(t *testing.T, k kindOfTest) {
	blocked := released(labelled(v1alpha1.SuspendLabel, "1700000000"))
	repair := func(labels string) string {
		return strings.Replace(released(labelled(v1alpha1.SuspendLabel, "1700000000")+labels), `"123"`, `"1234"`, 1)
	}
	tests := map[string]struct {
		before, after string
		edit          func(*admission.Request)
		wantDenied    bool
	}{
		"created":                {after: blocked},
		"released":               {before: released(""), after: repair("")},
		"blocked, nothing":       {before: blocked, after: blocked},
		"blocked, scaled":        {before: blocked, after: strings.Replace(blocked, `"replicas":5`, `"replicas":0`, 1)},
		"blocked, released":      {before: blocked, after: repair(""), wantDenied: true},
		"blocked, lost":          {before: blocked, after: released(""), wantDenied: true},
		"blocked, labels null":   {before: blocked, after: manifest(`{"name":"sleep"}`, sleepLabels), wantDenied: true},
		"blocked, overridden":    {before: blocked, after: repair(labelled(v1alpha1.IgnoredSuspendLabel, "true"))},
		"blocked, opted out":     {before: blocked, after: repair(labelled(v1alpha1.DefenseLabel, "disabled"))},
		"blocked, being deleted": {before: blocked, after: manifest(`{"name":"sleep","deletionTimestamp":"2024-01-01T00:00:00Z"}`, sleepLabels)},
		"blocked, our user": {
			before: blocked, after: repair(""), wantDenied: true,
			edit: func(req *admission.Request) { req.UserInfo.Username = self },
		},
		"blocked, our rollback": {
			before: blocked, after: repair(""),
			edit: func(req *admission.Request) {
				req.UserInfo.Username = self
				req.Options.Raw = []byte(`{"fieldManager":"altershield-operator"}`)
			},
		},
		"blocked, scale subresource": {before: blocked, after: repair(""), edit: func(req *admission.Request) { req.SubResource = "scale" }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			req := k.of(makeRequest(tt.before, tt.after))
			if tt.edit != nil {
				tt.edit(&req)
			}
			response := review(t, newValidating(Options{Self: self}, k), req)
			if response.Allowed == tt.wantDenied {
				t.Fatalf("allowed = %t, want %t", response.Allowed, !tt.wantDenied)
			}
			if response.Patch != nil {
				t.Errorf("patch %s, want none", response.Patch)
			}
			if !tt.wantDenied {
				if len(response.Warnings) > 0 {
					t.Error("warnings", response.Warnings)
				}
				return
			}
			if got, want := response.Result.Message, k.words.Replace("deployment sleep is suspended: "); !strings.HasPrefix(got, want) ||
				!strings.Contains(got, "; blocked since 2023-11-14T22:13:20Z. ") {
				t.Errorf("message %q, want %q, and since when", got, want)
			}
			if response.Result.Code != http.StatusForbidden {
				t.Errorf("code %d, want %d", response.Result.Code, http.StatusForbidden)
			}
			if len(response.Warnings) > 0 {
				t.Errorf("warnings %q", response.Warnings)
			}
		})
	}
}

func TestBadRequests(t *testing.T) {
	blocked := released(labelled(v1alpha1.SuspendLabel, "1"))
	tests := map[string]func(*admission.Request){
		"no object":           func(req *admission.Request) { req.Object.Raw = nil },
		"no old object":       func(req *admission.Request) { req.OldObject.Raw = nil },
		"no template":         func(req *admission.Request) { req.Object.Raw = []byte(`{"metadata":{},"spec":{}}`) },
		"labels are a list":   func(req *admission.Request) { req.Object.Raw = []byte(manifest(`{"labels":["a"]}`, sleepLabels)) },
		"a label is a number": func(req *admission.Request) { req.Object.Raw = []byte(manifest(`{"labels":{"a":1}}`, sleepLabels)) },
		"an annotation is an object": func(req *admission.Request) {
			req.Object.Raw = []byte(manifest(`{"annotations":{"a":{}}}`, sleepLabels))
		},
		"a template label is null": func(req *admission.Request) { req.Object.Raw = []byte(manifest(`{}`, `{"a":null}`)) },
		"options are no object": func(req *admission.Request) {
			req.UserInfo.Username, req.Options.Raw = self, []byte(`[]`)
		},
	}
	for name, edit := range tests {
		t.Run(name, func(t *testing.T) {
			req := makeRequest(blocked, released(""))
			edit(&req)
			logged := 0
			options := Options{Self: self, Log: funcr.New(func(_, args string) {
				logged++
				if !strings.Contains(args, `"name"="sleep"`) {
					t.Errorf("log line %s does not name the object", args)
				}
			}, funcr.Options{})}

			if response := review(t, mutatingOf(options, deployments), req); !response.Allowed || response.Patch != nil {
				t.Errorf("mutation answers %+v, want it to let pass unchanged", response)
			}
			if logged != 1 {
				t.Errorf("mutation logged %d lines, want 1", logged)
			}
			response := review(t, newValidating(options, deployments), req)
			if response.Allowed || response.Result.Code != http.StatusInternalServerError {
				t.Errorf("validation answers %+v, want an error", response)
			}
		})
	}
}

func TestPanics(t *testing.T) {
	for name, h := range map[string]handler{
		"mutating":   mutatingOf(Options{Log: logr.Discard()}, deployments),
		"validating": newValidating(Options{}, deployments),
	} {
		t.Run(name, func(t *testing.T) {
			broken := h
			broken.answer = func(context.Context, *admission.Request) (admission.Response, error) { panic(errors.New("broken")) }
			response := review(t, broken, makeRequest("", manifest(`{}`, sleepLabels)))
			if want := name == "mutating"; response.Allowed != want || response.Patch != nil {
				t.Errorf("allowed = %t, want %t", response.Allowed, want)
			}
			if response.Result != nil && strings.Contains(response.Result.Message, "goroutine") {
				t.Error("the stack is shown to the user")
			}
		})
	}
}

// TestManifest compares the generated manifests with the texts that webhooks depend on, whose
// lines may be wrapped.
func TestManifest(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "config", "webhook", "manifests.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(data)), " ")
	for _, key := range []string{
		v1alpha1.EnrolledLabel + ": " + v1alpha1.EnrolledValue,
		"path: " + pathOf(intercept.Mutate, deployments), "path: " + pathOf(intercept.Validate, deployments),
		v1alpha1.SuspendLabel, v1alpha1.IgnoredSuspendLabel, v1alpha1.OverrideStaleAnnotation, v1alpha1.OverrideAnnotation, v1alpha1.DefenseLabel,
		".split('' '')[?1]",
		// The admission check creates an order on the server, except in a dry run.
		"path: " + pathOf(intercept.Mutate, deployments) + " failurePolicy: Ignore", "reinvocationPolicy: IfNeeded", "sideEffects: NoneOnDryRun",
		"path: " + pathOf(intercept.Quarantine, deployments) + " failurePolicy: Ignore", v1alpha1.QuarantinedAnnotation,
	} {
		if !strings.Contains(text, key) {
			t.Errorf("config/webhook/manifests.yaml does not mention %s", key)
		}
	}
}

func BenchmarkMutating(b *testing.B) {
	before := released(labelled(v1alpha1.DefenseStatusLabel, "processed"))
	req := makeRequest(before, strings.Replace(before, `"123"`, `"1234"`, 1))
	h := mutatingOf(Options{Self: self}, deployments)
	b.Run("handler", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if response := h.Handle(b.Context(), req); len(response.Patches) == 0 {
				b.Fatal("no patch")
			}
		}
	})
	b.Run("wire", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			review(b, h, req)
		}
	})
	// A Deployment of 100 containers with 20 variables each, some 200 kB.
	var containers []string
	for i := range 100 {
		var env []string
		for j := range 20 {
			env = append(env, fmt.Sprintf(`{"name":"VARIABLE_%d","value":"a value of some length, number %d"}`, j, j))
		}
		containers = append(containers, fmt.Sprintf(`{"name":"c%d","image":"busybox","env":[%s],"resources":{}}`, i, strings.Join(env, ",")))
	}
	large := strings.NewReplacer(`"containers":[`, `"containers":[`+strings.Join(containers, ",")+`,`).Replace
	big := makeRequest(large(before), large(strings.Replace(before, `"123"`, `"1234"`, 1)))
	b.Run("large", func(b *testing.B) {
		b.SetBytes(int64(len(big.Object.Raw)))
		b.ReportAllocs()
		for b.Loop() {
			if response := h.Handle(b.Context(), big); len(response.Patches) == 0 {
				b.Fatal("no patch")
			}
		}
	})
}

func BenchmarkValidating(b *testing.B) {
	before := released(labelled(v1alpha1.SuspendLabel, "1"))
	req := makeRequest(before, strings.Replace(before, `"123"`, `"1234"`, 1))
	h := newValidating(Options{Self: self}, deployments)
	b.ReportAllocs()
	for b.Loop() {
		if response := h.Handle(b.Context(), req); response.Allowed {
			b.Fatal("allowed")
		}
	}
}
