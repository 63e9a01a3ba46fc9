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

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/monitoring"
)

// These specs attack the operator as a tenant does who may write policies and endpoints in a namespace, and as a user does who may write
// endpoints in the operator's namespace. Other tests have these attacks already:
//
//   - how a selector may be written, experimental functions, values of variables: TestOtherTenants, TestVariablesAreNoQuery and
//     FuzzNamespace in internal/promql; matchers of alerts: TestMatchers there, and TestAlertsOfOthers in internal/checks
//   - endpoints for the operator, for another team, of another type, and of the policy's namespace: TestEndpointsOfOthers and
//     TestServiceOfOthers in internal/checks
//   - Secrets without the label, names of Secrets in messages: TestCredentials in internal/endpoint, TestSecretsOfOthers in internal/checks
//   - addresses after DNS, also of tokens, of the API server, of metadata services and of --deny-cidrs: TestGuard in internal/endpoint and
//     internal/checks
//   - redirects, reserved headers, credentials and answers in messages: TestBadDays, TestTokenAddress, TestProblem and TestSend in
//     internal/endpoint
//   - answers of a service in messages: TestServiceTexts in internal/checks
//   - labels of metrics, which are names of policies and checks: internal/metrics

// Data of another tenant: a label and the value of a series, and a token.
const (
	foreignLabel = "revenue-7f3a91c2"
	foreignToken = "token-5b1e08d4"
	foreignValue = 8675309
	// shownValue is the value as the operator writes it.
	shownValue = "8.67531e+06"
)

// tenancy has the endpoints of the specs.
type tenancy struct {
	*world
	// mallory is the namespace of the tenant, shop the namespace of another.
	mallory, shop string
	host          string
	prometheus    *monitoring.Prometheus
}

// as returns a client for a user who may only write some kinds in a namespace.
func (t *tenancy) as(ctx context.Context, user, namespace string, kinds ...string) client.Client {
	GinkgoHelper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: kinds, Verbs: []string{"create", "get", "list", "update", "patch", "delete"},
	}}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}
	for _, o := range []client.Object{role, binding} {
		Expect(t.api.Create(ctx, o)).To(Succeed())
		DeferCleanup(t.api.Delete, o)
	}
	config, err := clientcmd.BuildConfigFromFlags("", t.kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	made, err := client.New(config, client.Options{Scheme: t.api.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	Eventually(func() error { // the authorizer has a cache
		return made.List(ctx, &v1alpha1.DefenseEndpointList{}, client.InNamespace(namespace))
	}).WithContext(ctx).Should(Succeed())
	Expect(made.List(ctx, &v1alpha1.DefenseEndpointList{})).To(MatchError(ContainSubstring("forbidden")))
	Expect(made.List(ctx, &corev1.SecretList{}, client.InNamespace(namespace))).To(MatchError(ContainSubstring("forbidden")))
	return made
}

// endpoint creates an endpoint, until the end of the container.
func (t *tenancy) endpoint(
	ctx context.Context, by client.Client, namespace, name string, of v1alpha1.EndpointType, url string, with func(*v1alpha1.DefenseEndpoint),
) *v1alpha1.DefenseEndpoint {
	GinkgoHelper()
	e := &v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	e.Spec.Type, e.Spec.URL = of, url
	with(e)
	Expect(by.Create(ctx, e)).To(Succeed(), name)
	DeferCleanup(t.api.Delete, e)
	return e
}

// front starts a server at an address that the operator may call.
func (t *tenancy) front(fault monitoring.Fault) *monitoring.Front {
	GinkgoHelper()
	f, err := monitoring.StartFront(monitoring.FrontOptions{Host: t.host})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(f.Close)
	f.Break(fault)
	return f
}

// secret creates a Secret with a token.
func (t *tenancy) secret(ctx context.Context, namespace, name string, labels map[string]string) {
	GinkgoHelper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	s.StringData = map[string]string{"token": foreignToken, "tls.crt": foreignToken, "tls.key": foreignToken, "ca.crt": foreignToken}
	Expect(t.api.Create(ctx, s)).To(Succeed())
	DeferCleanup(t.api.Delete, s)
}

// expectNoForeign checks that nothing of the other tenant is in an object or a log of the operator.
func (t *tenancy) expectNoForeign(ctx context.Context) {
	GinkgoHelper()
	texts := map[string]string{"objects": t.kubectl(ctx, "get", "-A", "-o", "yaml",
		"changeworkloads,changepods,defensepolicies,defenseendpoints,opsconfiginfoes,deployments,events,events.events.k8s.io")}
	for _, path := range t.logs() {
		data, err := os.ReadFile(path)
		Expect(err).NotTo(HaveOccurred())
		texts[path] = string(data)
	}
	for name, text := range texts {
		for _, foreign := range []string{foreignLabel, foreignToken, shownValue} {
			if i := strings.Index(text, foreign); i >= 0 {
				Fail(fmt.Sprintf("%s: %q is shown: %s", name, foreign, text[max(i-1000, 0):min(i+200, len(text))]))
			}
		}
	}
}

// policyOf returns a policy of the tenant for the workload of its name.
func (t *tenancy) policyOf(name string, checks []v1alpha1.PolicyCheck) *v1alpha1.DefensePolicy {
	for i := range checks {
		checks[i].Deadline = &metav1.Duration{Duration: 5 * time.Minute}
	}
	return &v1alpha1.DefensePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.mallory, Name: name},
		Spec: v1alpha1.DefensePolicySpec{
			WorkloadSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Checks:           checks, OnError: v1alpha1.SilencePasses, OnNoData: v1alpha1.SilencePasses,
		},
	}
}

// text replaces the names of a query.
func (t *tenancy) text(query string) string {
	return strings.NewReplacer("MALLORY", t.mallory, "SHOP", t.shop, "M", "http_server_request_duration_seconds_count").Replace(query)
}

// begin starts a Prometheus with series of two namespaces, and an alert about the other one.
func (t *tenancy) begin(ctx context.Context) {
	GinkgoHelper()
	t.mallory, t.shop = t.newNamespace(ctx, true), t.newNamespace(ctx, false)
	addresses, err := controlplane.PodAddresses(ctx)
	if err != nil || len(addresses) == 0 {
		Skip("this machine has no other address than loopback")
	}
	t.host = addresses[0].String()
	programs, err := monitoring.Programs(ctx, root, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	targets, err := monitoring.NewTargets(monitoring.TargetsOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(targets.Close)
	for _, pod := range []string{t.shop + "/web-0", t.mallory + "/web-0", t.mallory + "/web-1"} {
		ns, name, _ := strings.Cut(pod, "/")
		requests, label := 7, "none"
		if ns == t.shop {
			requests, label = foreignValue, foreignLabel
		}
		target, err := targets.Add(ns, name, monitoring.TargetOptions{Labels: map[string]string{"secret": label}})
		Expect(err).NotTo(HaveOccurred())
		target.Burst(requests, monitoring.Traffic{Latency: time.Millisecond})
	}
	t.prometheus, err = monitoring.StartPrometheus(ctx, monitoring.PrometheusOptions{
		Programs: programs, Host: t.host, Targets: targets, Rules: []monitoring.Rule{{
			Alert: "Revenue", Expr: t.text(`sum by (namespace, secret) (M{namespace="SHOP"}) > 0`), Labels: map[string]string{"deployment": "web"},
		}},
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(t.prometheus.Close)
	Eventually(func(g Gomega) {
		fires, err := t.prometheus.Query(ctx, `ALERTS{alertname="Revenue",alertstate="firing"}`, time.Now())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(fires).To(HaveLen(1))
		own, err := t.prometheus.Query(ctx, t.text(`M{namespace="MALLORY"}`), time.Now())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(own).To(HaveLen(2))
	}).WithContext(ctx).Should(Succeed())
}

var _ = Describe("a tenant who reads what belongs to another", Ordered, func() {
	t := &tenancy{world: inSharedWorld()}
	BeforeAll(t.begin, NodeTimeout(patience))

	It("gets no series, no verdict and no answer by a policy", func(ctx SpecContext) {
		// Without the limits, each attack succeeds.
		for _, a := range queryAttacks {
			if a.harmless {
				continue
			}
			result, err := t.prometheus.Query(ctx, t.text(a.query), time.Now())
			Expect(err).NotTo(HaveOccurred(), a.name)
			Expect(result.String()).To(Or(ContainSubstring(foreignLabel), ContainSubstring("8675309"), ContainSubstring("8.675309e+06")), a.name)
		}

		tenant := t.as(ctx, "mallory", t.mallory, "defensepolicies", "defenseendpoints")
		onlyShop := func(e *v1alpha1.DefenseEndpoint) {
			e.Spec.AllowedNamespaces = &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSelector, Selector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: t.shop},
			}}
			e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "tenancy-token"}}
		}
		t.secret(ctx, controlplane.ManagerNamespace, "tenancy-token", map[string]string{v1alpha1.EndpointSecretLabel: "true"})
		foreign := func(w http.ResponseWriter, r *http.Request, _ <-chan struct{}) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"secret":%q}`, foreignLabel)
		}
		gate, shopGate, alertmanager := t.front(foreign), t.front(foreign), t.front(foreign)
		create := func(name string, of v1alpha1.EndpointType, url string, with func(*v1alpha1.DefenseEndpoint)) {
			GinkgoHelper()
			t.endpoint(ctx, t.api, controlplane.ManagerNamespace, name, of, url, with)
		}
		create("tenancy", v1alpha1.EndpointPrometheus, t.prometheus.URL(), func(e *v1alpha1.DefenseEndpoint) {
			e.Spec.Prometheus = &v1alpha1.EndpointPrometheusOptions{ScrapeInterval: &metav1.Duration{Duration: time.Second}}
			e.Spec.Limits = &v1alpha1.EndpointLimits{QPS: 50, Concurrency: 8}
		})
		create("tenancy-shop", v1alpha1.EndpointPrometheus, t.prometheus.URL(), onlyShop)
		create("tenancy-shop-gate", v1alpha1.EndpointHTTP, shopGate.URL(), onlyShop)
		create("tenancy-shop-alerts", v1alpha1.EndpointAlertmanager, alertmanager.URL(), onlyShop)
		create("tenancy-gate", v1alpha1.EndpointHTTP, gate.URL(), func(e *v1alpha1.DefenseEndpoint) {
			e.Spec.Headers = map[string]v1alpha1.HeaderValue{"X-Scope-OrgID": "mallory"}
		})
		own := t.front(foreign)
		t.endpoint(ctx, tenant, t.mallory, "tenancy-own", v1alpha1.EndpointPrometheus, own.URL(), func(e *v1alpha1.DefenseEndpoint) {
			e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "tenancy-token"}}
		})

		checks, want := otherAttacks()
		policies := []*v1alpha1.DefensePolicy{t.policyOf("web", checks)}
		policies[0].Spec.Notify = []v1alpha1.PolicyNotify{{
			EndpointRef: v1alpha1.EndpointReference{Name: "tenancy-shop-alerts"}, Events: []v1alpha1.NotifyReason{v1alpha1.NotifyWouldFail},
		}}
		for part := range slices.Chunk(queryAttacks, perPolicy) {
			checks := make([]v1alpha1.PolicyCheck, len(part))
			for i, a := range part {
				checks[i] = v1alpha1.PolicyCheck{Name: a.name, Prometheus: &v1alpha1.PrometheusCheck{
					EndpointRef: v1alpha1.EndpointReference{Name: "tenancy"}, Query: t.text(a.query), FailWhen: cmp.Or(a.failWhen, bigValue),
					Interval: &metav1.Duration{Duration: 5 * time.Second}, Count: 1, Failures: 1,
				}}
			}
			policies = append(policies, t.policyOf(fmt.Sprintf("queries-%d", len(policies)), checks))
		}
		for _, p := range policies {
			t.createAdmitted(ctx, sleeper(t.mallory, p.Name).Replicas(1))
		}
		for _, p := range policies {
			t.verified(ctx, t.mallory, p.Name)
			Expect(tenant.Create(ctx, p)).To(Succeed())
			DeferCleanup(t.api.Delete, p)
			Eventually(func(g Gomega) {
				g.Expect(tenant.Get(ctx, client.ObjectKeyFromObject(p), p)).To(Succeed())
				accepted := conditionOf(p.Status.Conditions, v1alpha1.ConditionAccepted)
				g.Expect(accepted.Reason).To(Equal(v1alpha1.ReasonInForce), accepted.Message)
			}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		}
		info := t.policyOf("info", []v1alpha1.PolicyCheck{*policies[1].Spec.Checks[0].DeepCopy()})
		info.Spec.Checks[0].Prometheus.Query = t.text(`info(M, {namespace="SHOP"})`)
		Expect(tenant.Create(ctx, info)).To(Succeed())
		DeferCleanup(t.api.Delete, info)
		Eventually(func(g Gomega) {
			g.Expect(tenant.Get(ctx, client.ObjectKeyFromObject(info), info)).To(Succeed())
			g.Expect(conditionOf(info.Status.Conditions, v1alpha1.ConditionAccepted)).To(And(
				HaveField("Status", metav1.ConditionFalse),
				HaveField("Message", ContainSubstring("spec.checks[0].prometheus.query: it does not parse")),
			))
			g.Expect(tenant.Get(ctx, client.ObjectKeyFromObject(policies[0]), policies[0])).To(Succeed())
			g.Expect(conditionOf(policies[0].Status.Conditions, v1alpha1.ConditionNotifies)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.ReasonNoEndpoint),
				HaveField("Message", ContainSubstring("spec.notify[0].endpointRef: tenancy-shop-alerts")),
			))
		}).WithContext(ctx).Should(Succeed())

		By("releasing a version that the checks verify")
		wanted := map[string][]attack{}
		t.leaveUnfinished("some checks are asked again for minutes")
		for i, p := range policies {
			Expect(t.patchTemplate(ctx, t.mallory, p.Name, "next")).To(Succeed())
			if i > 0 {
				first := (i - 1) * perPolicy
				want = queryAttacks[first:min(first+perPolicy, len(queryAttacks))]
			}
			wanted[p.Name] = want
		}
		Eventually(func(g Gomega) {
			for name, want := range wanted {
				for _, a := range want {
					checks := t.checksOf(ctx, g, t.mallory, name, t.mallory+"/"+name+"/"+a.name)
					g.Expect(checks).To(HaveLen(1), a.name)
					phase := Equal(a.phase)
					if a.phase == v1alpha1.CheckError {
						phase = Or(phase, Equal(v1alpha1.CheckRunning)) // it is asked again until the deadline
					}
					g.Expect(checks[0].Phase).To(phase, "%s: %s", a.name, checks[0].Message)
					g.Expect(checks[0].Message).To(ContainSubstring(a.message), a.name)
					g.Expect(checks[0].Samples).NotTo(ContainElement(ContainSubstring(t.shop)), a.name)
				}
			}
		}).WithContext(ctx).WithTimeout(5 * time.Minute).Should(Succeed())
		t.expectNoForeign(ctx)

		By("looking at what the endpoints were asked")
		posts := func(f *monitoring.Front) (all []monitoring.Request) {
			return slices.DeleteFunc(f.Requests(), func(r monitoring.Request) bool { return r.Method != http.MethodPost })
		}
		Expect(own.Requests()).To(BeEmpty(), "an endpoint of the tenant's namespace")
		Expect(posts(shopGate)).To(BeEmpty())
		for _, r := range posts(alertmanager) {
			Expect(string(r.Body)).To(Equal("[]"), "the operator only asks whether it answers")
		}
		asked := posts(gate)
		Expect(asked).NotTo(BeEmpty())
		for _, r := range asked {
			Expect(r.Header["X-Scope-Orgid"]).To(Equal([]string{"mallory"}))
			Expect(r.Header).NotTo(HaveKey("Authorization"))
		}
	}, SpecTimeout(10*time.Minute))

	It("has the operator call no address of the machine by an endpoint, and send no Secret", func(ctx SpecContext) {
		var called atomic.Int32
		loopback := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			called.Add(1)
			_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]},"secret":%q}`, foreignLabel)
		}))
		DeferCleanup(loopback.Close)
		_, port, _ := strings.Cut(strings.TrimPrefix(loopback.URL, "http://"), ":")
		config, err := clientcmd.BuildConfigFromFlags("", t.kubeconfig)
		Expect(err).NotTo(HaveOccurred())
		redirecting, catcher := t.front(monitoring.Redirect(loopback.URL)), t.front(monitoring.Redirect(loopback.URL))
		t.secret(ctx, controlplane.ManagerNamespace, "tenancy-plain", nil)
		t.secret(ctx, t.shop, "tenancy-shop", map[string]string{v1alpha1.EndpointSecretLabel: "true"})
		writer := t.as(ctx, "endpoints", controlplane.ManagerNamespace, "defenseendpoints")

		const refused, unlabelled = "its address may not be called", "namespace " + controlplane.ManagerNamespace + " has no Secret "
		type row struct {
			url, says string
			// all: each type of endpoint is tried.
			all  bool
			with func(*v1alpha1.DefenseEndpoint)
		}
		made := map[*v1alpha1.DefenseEndpoint]string{}
		for i, r := range []row{
			{url: "http://127.0.0.1:" + port, says: refused, all: true},
			{url: "http://localhost:" + port, says: refused, all: true},
			{url: "http://[::1]:" + port, says: refused},
			{url: "http://[::ffff:127.0.0.1]:" + port, says: refused, all: true},
			{url: "http://0.0.0.0:" + port, says: refused, all: true},
			{url: "http://127.1:" + port},
			{url: "http://2130706433:" + port},
			{url: "http://0x7f000001:" + port},
			{url: "http://169.254.169.254/latest", says: refused, all: true},
			{url: "http://[::ffff:169.254.169.254]", says: refused},
			{url: "http://[fd00:ec2::254]", says: refused},
			{url: "http://100.100.100.200", says: refused},
			{url: config.Host, says: refused, all: true},
			{url: redirecting.URL(), says: "it redirects (HTTP 307), and redirects are not followed", all: true},
			{url: catcher.URL(), says: unlabelled + "tenancy-plain", all: true, with: func(e *v1alpha1.DefenseEndpoint) {
				e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "tenancy-plain"}}
			}},
			{url: catcher.URL(), says: unlabelled + "tenancy-shop", with: func(e *v1alpha1.DefenseEndpoint) {
				e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "tenancy-shop"}}
			}},
			{url: catcher.URL(), says: unlabelled + "tenancy-plain", with: func(e *v1alpha1.DefenseEndpoint) {
				e.Spec.TLS = &v1alpha1.EndpointTLS{CertSecretRef: &v1alpha1.SecretReference{Name: "tenancy-plain"}}
			}},
			{url: catcher.URL(), says: unlabelled + "tenancy-plain", with: func(e *v1alpha1.DefenseEndpoint) {
				e.Spec.Auth = &v1alpha1.EndpointAuth{OAuth2: &v1alpha1.EndpointOAuth2{
					SecretRef: v1alpha1.SecretReference{Name: "tenancy-plain"}, TokenURL: catcher.URL() + "/token",
				}}
			}},
		} {
			types := []v1alpha1.EndpointType{v1alpha1.EndpointPrometheus, v1alpha1.EndpointHTTP, v1alpha1.EndpointAlertmanager}
			if r.with == nil {
				r.with = func(*v1alpha1.DefenseEndpoint) {}
			}
			if !r.all {
				types = types[:1]
			}
			for _, of := range types {
				name := fmt.Sprintf("tenancy-%d-%s", i, strings.ToLower(string(of)))
				made[t.endpoint(ctx, writer, controlplane.ManagerNamespace, name, of, r.url, r.with)] = r.says
			}
		}
		Eventually(func(g Gomega) {
			for e, says := range made {
				g.Expect(writer.Get(ctx, client.ObjectKeyFromObject(e), e)).To(Succeed())
				accepted := conditionOf(e.Status.Conditions, v1alpha1.ConditionAccepted)
				reachable := conditionOf(e.Status.Conditions, v1alpha1.ConditionReachable)
				g.Expect(reachable.Status).To(Or(Equal(metav1.ConditionFalse), Equal(metav1.ConditionUnknown)), "%s %s", e.Spec.Type, e.Spec.URL)
				message := accepted.Message + reachable.Message
				g.Expect(message).NotTo(BeEmpty())
				g.Expect(message).To(ContainSubstring(says), "%s %s", e.Spec.Type, e.Spec.URL)
			}
		}).WithContext(ctx).WithTimeout(3 * time.Minute).Should(Succeed())
		Expect(called.Load()).To(BeZero(), "a loopback address was called")
		Expect(catcher.Requests()).To(BeEmpty(), "an endpoint with a Secret that is not for it was called")
		Expect(redirecting.Requests()).NotTo(BeEmpty())
		t.expectNoForeign(ctx)
	}, SpecTimeout(5*time.Minute))
})
