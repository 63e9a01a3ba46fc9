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

package check

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/plugin/installation"
)

const (
	validating = "altershieldoperator-validating-webhook-configuration"
	kind       = "changeworkloads.app.ops.cloud.alipay.com"
)

// TestCheck checks an installation while it becomes healthy, and then breaks it in one way after the other: the check names
// each problem with its remedy, and passes when the problem is gone.
func TestCheck(t *testing.T) {
	w := start(t)
	w.subtest("nothing is installed", w.testAbsent)
	w.install()
	w.subtest("no replica leads yet", w.testWaiting)
	w.run()
	w.kubectl("create", "namespace", "shop")
	w.kubectl("label", "namespace", "shop", v1alpha1.EnrolledLabel+"="+v1alpha1.EnrolledValue)
	w.subtest("healthy", w.testHealthy)
	w.subtest("users", w.testUsers)
	for _, b := range breakages {
		w.subtest(b.name, func(t *testing.T) { w.testBroken(t, b) })
	}
	w.subtest("the manager crashes", w.testCrash)
}

// subtest runs a subtest whose failure does not end the test.
func (w *world) subtest(name string, do func(t *testing.T)) {
	whole := w.t
	defer func() { w.t = whole }()
	whole.Run(name, func(t *testing.T) {
		w.t = t
		do(t)
	})
}

func (w *world) testAbsent(t *testing.T) {
	printed := w.check("-o", "short")
	if printed.code != 1 {
		t.Errorf("exit code %d, want 1", printed.code)
	}
	for _, want := range []string{
		"no Deployment in " + namespace, "install the operator", "the CustomResourceDefinition " + kind + " does not exist", "not healthy",
	} {
		if !strings.Contains(printed.out, want) {
			t.Errorf("%q is not printed:\n%s", want, printed.out)
		}
	}
}

// testWaiting: pods are ready and no manager has the lease, so with --wait the command waits for a leader.
func (w *world) testWaiting(t *testing.T) {
	printed := w.check("--wait=1s")
	if printed.code != 1 || !strings.Contains(printed.errs, "waiting for: ") || !strings.Contains(printed.errs, "a replica leads") {
		t.Errorf("exit code %d, printed:\n%s", printed.code, printed.errs)
	}
}

func (w *world) testHealthy(t *testing.T) {
	printed := w.check("--wait=2m", "--strict")
	t.Logf("%d requests with --wait\n%s", printed.requests, printed.out)
	if printed.code != 0 {
		t.Fatalf("exit code %d\n%s%s", printed.code, printed.out, printed.errs)
	}
	once := w.check()
	t.Logf("%d requests for one check", once.requests)
	if most := int64(40); once.requests > most {
		t.Errorf("%d requests for one check, want at most %d", once.requests, most)
	}
	r, _ := w.report()
	if r.Summary.Skipped != 0 || r.Namespace != namespace || r.OperatorVersion != released {
		t.Errorf("of an administrator: %+v of %s in %s", r.Summary, r.OperatorVersion, r.Namespace)
	}
	if c := find(&r, "webhooks.answer"); c.Status != installation.OK || c.Message != "in shop" {
		t.Errorf("the webhooks answer: %+v", c)
	}
	var stored appsv1.DeploymentList
	if err := w.api.List(t.Context(), &stored, client.InNamespace("shop")); err != nil || len(stored.Items) != 0 {
		t.Errorf("the dry run left %d Deployments (%v)", len(stored.Items), err)
	}
}

// testUsers: fewer rights skip checks, and fail none. A user who may neither see the operator nor try its webhooks does not
// know whether the operator runs.
func (w *world) testUsers(t *testing.T) {
	w.kubectl("-n", "shop", "create", "rolebinding", "viewer", "--clusterrole=view", "--user=viewer")
	w.kubectl("-n", "shop", "create", "rolebinding", "editor", "--clusterrole=edit", "--user=editor")
	for user, want := range map[string]installation.Status{"viewer": installation.Skipped, "editor": installation.OK} {
		w.eventually("the roles are aggregated", func() string {
			r, code := w.report("--as="+user, "-n", "shop")
			answer, mine := find(&r, "webhooks.answer"), find(&r, "rights.yours")
			wanted := 0
			if user == "viewer" {
				wanted = 2
			}
			switch {
			case code != wanted || r.Unknown != (wanted == 2) || len(r.NotPassed()) > 0:
				return fmt.Sprintf("%s: exit code %d: %+v", user, code, r.NotPassed())
			case answer.Status != want:
				return fmt.Sprintf("%s: %+v", user, answer)
			case find(&r, "operator.deployment").Message != "your user may not list deployments in "+namespace:
				return fmt.Sprintf("%s: %+v", user, find(&r, "operator.deployment"))
			case strings.Contains(mine.Message, "change workloads (patch deployments)") != (user == "viewer") ||
				!strings.Contains(mine.Message, "enrol the namespace"):
				return fmt.Sprintf("%s: %+v", user, mine)
			}
			return ""
		})
	}
}

// breakage is a problem of an installation, with the checks that find it.
type breakage struct {
	name string
	// do causes the problem, and returns a function that undoes it.
	do func(w *world) (undo func())
	// want are the checks that do not pass, with words of their messages.
	want map[string]string
	// status is the status of these checks.
	status installation.Status
	// remedy has words of their remedies.
	remedy string
}

var breakages = []breakage{
	{
		name: "a kind is not served", status: installation.Failed, remedy: "apply the manifests",
		want: map[string]string{"kinds.defensepolicies": "the version v1alpha1 is not served"},
		do: func(w *world) func() {
			o := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "defensepolicies.app.ops.cloud.alipay.com"}}
			return edit(w, o, func(o *apiextensionsv1.CustomResourceDefinition) { o.Spec.Versions[0].Served = false })
		},
	},
	{
		name: "the validating configuration is deleted", status: installation.Failed, remedy: "apply the manifests",
		want: map[string]string{"webhooks.validating": "no release of a blocked workload is denied"},
		do: func(w *world) func() {
			o := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: validating}}
			must(w.t, w.api.Get(w.t.Context(), client.ObjectKeyFromObject(o), o))
			must(w.t, w.api.Delete(w.t.Context(), o.DeepCopy()))
			o.ObjectMeta = metav1.ObjectMeta{Name: o.Name, Labels: o.Labels}
			return func() { must(w.t, w.api.Create(w.t.Context(), o)) }
		},
	},
	{
		name: "a setting has another type", status: installation.Failed, remedy: "edit opsconfiginfo NAME",
		want: map[string]string{"settings.accepted": `spec.type: the setting "halting" is of type isHalting, not isBranch`},
		do: func(w *world) func() {
			setting := &v1alpha1.OpsConfigInfo{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "halting"}}
			return edit(w, setting, func(o *v1alpha1.OpsConfigInfo) {
				o.Spec.Type, o.Spec.Content = v1alpha1.TypeBranch, "10"
			})
		},
	},
	{
		name: "observe mode", status: installation.Warning, remedy: "unless that is on purpose",
		want: map[string]string{"settings.defense": "observe is on"},
		do: func(w *world) func() {
			setting := &v1alpha1.OpsConfigInfo{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "observe"}}
			return edit(w, setting, func(o *v1alpha1.OpsConfigInfo) { o.Spec.Enable = true })
		},
	},
	{
		name: "the default policy is in observe mode", status: installation.Warning, remedy: `patch defensepolicy default`,
		want: map[string]string{"policies.default": "its mode is Observe"},
		do: func(w *world) func() {
			policy := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
			return edit(w, policy, func(o *v1alpha1.DefensePolicy) { o.Spec.Mode = v1alpha1.ModeObserve })
		},
	},
	{
		name: "the certificate is not readable", status: installation.Failed, remedy: "the manager writes and renews it",
		want: map[string]string{"webhooks.certificate": "has no certificate in tls.crt"},
		do: func(w *world) func() {
			w.kill()
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "altershieldoperator-webhook-server-cert"}}
			restore := edit(w, secret, func(o *corev1.Secret) { o.Data["tls.crt"] = []byte("none") })
			return func() {
				restore()
				w.run()
			}
		},
	},
	{
		name: "a system namespace is labelled", status: installation.Warning, remedy: "remove the label",
		want: map[string]string{"namespaces.excluded": "kube-public"},
		do: func(w *world) func() {
			w.kubectl("label", "namespace", "kube-public", v1alpha1.EnrolledLabel+"="+v1alpha1.EnrolledValue)
			return func() { w.kubectl("label", "namespace", "kube-public", v1alpha1.EnrolledLabel+"-") }
		},
	},
}

// edit changes an object, and returns a function that undoes the change.
func edit[T client.Object](w *world, o T, change func(T)) (undo func()) {
	w.t.Helper()
	ctx, key := w.t.Context(), client.ObjectKeyFromObject(o)
	// The operator may write the status at the same time.
	update := func(next func() T) {
		w.t.Helper()
		must(w.t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if err := w.api.Get(ctx, key, o); err != nil {
				return err
			}
			return w.api.Update(ctx, next())
		}))
	}
	var before T
	update(func() T {
		var ok bool
		if before, ok = o.DeepCopyObject().(T); !ok {
			w.t.Fatalf("a copy of %T is another kind", o)
		}
		change(o)
		return o
	})
	return func() {
		update(func() T {
			before.SetResourceVersion(o.GetResourceVersion())
			return before
		})
	}
}

func (w *world) testBroken(t *testing.T, b breakage) {
	undo := sync.OnceFunc(b.do(w))
	defer undo()
	w.eventually("the check finds it", func() string {
		r, _ := w.report()
		return unfound(&r, b)
	})
	printed := w.check("-o", "short")
	t.Log("\n" + printed.out)
	if failed := b.status == installation.Failed; (printed.code == 1) != failed {
		t.Errorf("exit code %d, of a check that is %s", printed.code, b.status)
	}
	undo()
	w.healthy()
}

// unfound returns the check that does not find a problem as it should; empty if all do.
func unfound(r *installation.Report, b breakage) string {
	for id, words := range b.want {
		c := find(r, id)
		if c.Status != b.status || !strings.Contains(c.Message, words) || !strings.Contains(c.Remedy, b.remedy) || c.Docs == "" {
			return fmt.Sprintf("%s: %+v", id, c)
		}
	}
	return ""
}

func (w *world) healthy() {
	w.t.Helper()
	w.eventually("it is healthy again", func() string {
		r, code := w.report("--strict")
		if code != 0 {
			return fmt.Sprintf("%+v", r.NotPassed())
		}
		return ""
	})
}

// testCrash: after a crash the lease stays for a while, and the webhooks do not answer. The next leader restores the webhook
// configurations that were edited meanwhile.
func (w *world) testCrash(t *testing.T) {
	w.kill()
	edit(w, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: validating}},
		func(o *admissionregistrationv1.ValidatingWebhookConfiguration) {
			for i := range o.Webhooks {
				ignore := admissionregistrationv1.Ignore
				o.Webhooks[i].FailurePolicy = &ignore
			}
		})
	b := breakage{status: installation.Failed, want: map[string]string{
		"operator.leader": "so no replica acts",
		"webhooks.answer": "in shop it passed without the label",
		"webhooks.block":  "the failure policy of vdeployment.kb.io is Ignore",
	}}
	w.eventually("the check finds it", func() string {
		r, _ := w.report()
		return unfound(&r, b)
	})
	t.Log("\n" + w.check("-o", "short").out)
	w.run()
	w.healthy()
}
