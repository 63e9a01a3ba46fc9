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

package certificates

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/options"
	"github.com/traas-stack/altershield-operator/internal/pki"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
	hooks "github.com/traas-stack/altershield-operator/webhooks"
)

func TestAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "Certificates against an API server")
}

const (
	ours       = "altershieldoperator-system"
	secretName = "altershieldoperator-webhook-server-cert"
	service    = "altershieldoperator-webhook-service"
	mutating   = "altershieldoperator-mutating-webhook-configuration"
	validating = "altershieldoperator-validating-webhook-configuration"
	shop       = "shop"
	operator   = "operator"
)

var (
	testEnv *envtest.Environment
	// admin may do everything, and is a user for the webhooks. The operator has the rights of its role.
	admin          client.Client
	operatorConfig *rest.Config
	balancer       *loadBalancer
	started        []*instance
)

var _ = BeforeSuite(func(ctx SpecContext) {
	ctrl.SetLogger(GinkgoLogr)
	root, err := filepath.Abs(filepath.Join("..", ".."))
	Expect(err).NotTo(HaveOccurred())
	binaries := filepath.Join(root, "bin", "k8s")
	_, err = os.Stat(filepath.Join(binaries, "kube-apiserver"))
	Expect(err).NotTo(HaveOccurred(), "run make controlplane")
	testEnv = &envtest.Environment{BinaryAssetsDirectory: binaries}
	testEnv.ControlPlane.GetAPIServer().Configure().Set("authorization-mode", "RBAC")
	_, err = testEnv.Start()
	DeferCleanup(func() { Expect(testEnv.Stop()).To(Succeed()) })
	Expect(err).NotTo(HaveOccurred())
	admin, err = client.New(testEnv.Config, client.Options{})
	Expect(err).NotTo(HaveOccurred())
	Expect(admin.Create(ctx, wrappers.MakeNamespace(ours).Obj())).To(Succeed())
	Expect(admin.Create(ctx, wrappers.MakeNamespace(shop).Enrolled().Obj())).To(Succeed())

	user, err := testEnv.AddUser(envtest.User{Name: operator}, nil)
	Expect(err).NotTo(HaveOccurred())
	operatorConfig = user.Config()
	installRoles(ctx, filepath.Join(root, "config", "rbac", "role.yaml"))
	installRoles(ctx, filepath.Join(root, "config", "samples", "restore", "role.yaml"))

	// The control plane has no network for Services, so the API server resolves this one by name.
	balancer = newLoadBalancer()
	DeferCleanup(balancer.close)
	Expect(admin.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: service},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	})).To(Succeed())
})

// installRoles binds the operator to its generated roles.
func installRoles(ctx context.Context, path string) {
	data, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: operator}}
	for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		Expect(yaml.Unmarshal(document, &kind)).To(Succeed())
		if kind.Kind == "Role" {
			role := &rbacv1.Role{}
			Expect(yaml.Unmarshal(document, role)).To(Succeed())
			Expect(admin.Create(ctx, role)).To(Succeed())
			Expect(admin.Create(ctx, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: role.Namespace, Name: "operator"}, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind.Kind, Name: role.Name},
			})).To(Succeed())
			continue
		}
		role := &rbacv1.ClusterRole{}
		Expect(yaml.Unmarshal(document, role)).To(Succeed())
		Expect(admin.Create(ctx, role)).To(Succeed())
		Expect(admin.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind.Kind, Name: role.Name},
		})).To(Succeed())
	}
}

// installConfigurations creates the configurations as the manifests do, without an authority.
func installConfigurations(ctx context.Context) {
	GinkgoHelper()
	wanted, err := NewConfigurations(hooks.Configurations(workload.Defended()), mutating, validating,
		Target{Namespace: ours, Service: service, Port: balancer.port})
	Expect(err).NotTo(HaveOccurred())
	for _, configuration := range wanted {
		object := configuration.Create(nil)
		Expect(client.IgnoreNotFound(admin.Delete(ctx, configuration.Object()))).To(Succeed())
		Expect(admin.Create(ctx, object)).To(Succeed())
	}
}

// instance is a replica of the operator with its webhooks only.
type instance struct {
	certificates *Certificates
	address      string
	stop         func()
}

func startInstance(ctx context.Context, change func(*Options)) *instance {
	GinkgoHelper()
	listener, err := net.Listen("tcp", "localhost:0")
	Expect(err).NotTo(HaveOccurred())
	_, portText, err := net.SplitHostPort(listener.Addr().String())
	Expect(err).NotTo(HaveOccurred())
	Expect(listener.Close()).To(Succeed())
	port, err := strconv.Atoi(portText)
	Expect(err).NotTo(HaveOccurred())

	o := Options{
		Certificates: options.Certificates{
			Namespace: ours, Secret: secretName, Service: service, Mutating: mutating, Validating: validating, Validity: 90 * 24 * time.Hour,
		},
		Configurations: hooks.Configurations(workload.Defended()), ServicePort: balancer.port,
		RecreateAfter: time.Second, LookEvery: 100 * time.Millisecond, Clock: clock.RealClock{}, Log: GinkgoLogr.WithName(portText),
	}
	if change != nil {
		change(&o)
	}
	keeps, err := New(o)
	Expect(err).NotTo(HaveOccurred())
	i := &instance{certificates: keeps, address: net.JoinHostPort("localhost", portText)}
	server := hooks.NewServer(hooks.ServerOptions{
		Host: "localhost", Port: port, GetCertificate: i.certificates.GetCertificate(),
		CertDir: o.Dir, CertName: o.CertName, KeyName: o.KeyName, Log: GinkgoLogr,
	})
	mgr, err := ctrl.NewManager(operatorConfig, ctrl.Options{
		Logger: GinkgoLogr, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0", WebhookServer: server,
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(i.certificates.SetupWithManager(mgr)).To(Succeed())
	Expect(hooks.SetupWithManager(mgr, hooks.Options{Kinds: workload.Defended(), Self: operator, Log: GinkgoLogr})).To(Succeed())
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(running) }()
	i.stop = sync.OnceFunc(func() {
		balancer.remove(i.address)
		cancel()
		Eventually(done, time.Minute).Should(Receive(Succeed()))
	})
	started = append(started, i)
	return i
}

// ready waits until instances are ready, and lets the API server call them.
func ready(instances ...*instance) {
	GinkgoHelper()
	for _, i := range instances {
		Eventually(func() error { return i.certificates.made.ready(nil) }, 20*time.Second, 20*time.Millisecond).Should(Succeed())
		Eventually(func() error { return handshake(i.address, nil) }, 20*time.Second, 20*time.Millisecond).Should(Succeed())
		balancer.add(i.address)
	}
}

// handshake makes a TLS handshake as an API server does. Nil roots skip the verification.
func handshake(address string, roots *x509.CertPool) error {
	connection, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", address, &tls.Config{
		RootCAs: roots, InsecureSkipVerify: roots == nil, ServerName: service + "." + ours + ".svc",
	})
	if err != nil {
		return err
	}
	return connection.Close()
}

func storedSecret(ctx context.Context) *corev1.Secret {
	GinkgoHelper()
	secret := &corev1.Secret{}
	Expect(admin.Get(ctx, types.NamespacedName{Namespace: ours, Name: secretName}, secret)).To(Succeed())
	return secret
}

func storedConfigurations(ctx context.Context, g Gomega) (
	m *admissionregistrationv1.MutatingWebhookConfiguration, v *admissionregistrationv1.ValidatingWebhookConfiguration,
) {
	m, v = &admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}
	g.ExpectWithOffset(1, admin.Get(ctx, types.NamespacedName{Name: mutating}, m)).To(Succeed())
	g.ExpectWithOffset(1, admin.Get(ctx, types.NamespacedName{Name: validating}, v)).To(Succeed())
	return m, v
}

// injected returns the authorities that a configuration carries.
func injected(ctx context.Context, g Gomega) []byte {
	_, v := storedConfigurations(ctx, g)
	return v.Webhooks[0].ClientConfig.CABundle
}

func pool(bundle []byte) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return roots
}

var _ = Describe("Certificates", Ordered, func() {
	var a, b *instance

	BeforeAll(func(ctx SpecContext) { installConfigurations(ctx) })
	AfterAll(func() {
		for _, i := range started {
			i.stop()
		}
	})

	It("are made once by replicas that race", func(ctx SpecContext) {
		a, b = startInstance(ctx, nil), startInstance(ctx, nil)
		ready(a, b)
		secret := storedSecret(ctx)
		Expect(secret.Type).To(Equal(corev1.SecretTypeTLS))
		Expect(pki.ParseCertificates(secret.Data[BundleKey])).To(HaveLen(1))
		m, v := storedConfigurations(ctx, Default)
		Eventually(func(g Gomega) {
			m, v := storedConfigurations(ctx, g)
			g.Expect(append(m.OwnerReferences, v.OwnerReferences...)).To(HaveEach(HaveField("Kind", "Namespace")))
			g.Expect(m.OwnerReferences).To(HaveLen(1))
		}, 10*time.Second, 50*time.Millisecond).Should(Succeed())
		bundles := [][]byte{m.Webhooks[0].ClientConfig.CABundle, v.Webhooks[0].ClientConfig.CABundle, v.Webhooks[1].ClientConfig.CABundle}
		Expect(bundles).To(HaveEach(secret.Data[BundleKey]))
		for _, i := range []*instance{a, b} {
			Expect(handshake(i.address, pool(bundles[0]))).To(Succeed())
			Expect(i.certificates.made.serving.Load().NotAfter()).To(BeTemporally("~", time.Now().Add(90*24*time.Hour), time.Minute))
		}
	})

	It("are called by the API server", func(ctx SpecContext) {
		Eventually(func(g Gomega) {
			d := wrappers.MakeDeployment(shop, "first").Obj()
			g.Expect(admin.Create(ctx, d, client.DryRunAll)).To(Succeed())
			g.Expect(d.Labels).To(HaveKey(v1alpha1.VersionLabel))
		}, 10*time.Second).Should(Succeed())
	})

	It("cost no writes at rest", func(ctx SpecContext) {
		versions := func() string {
			m, v := storedConfigurations(ctx, Default)
			return storedSecret(ctx).ResourceVersion + " " + m.ResourceVersion + " " + v.ResourceVersion
		}
		before := versions()
		Consistently(versions, 2*time.Second, 50*time.Millisecond).Should(Equal(before))
	})

	It("and the configurations are restored when altered", func(ctx SpecContext) {
		before, beforeV := storedConfigurations(ctx, Default)
		m, v := storedConfigurations(ctx, Default)
		m.Webhooks[0].ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://elsewhere.example/mutate")}
		m.Webhooks[0].Rules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Delete}
		m.Webhooks[0].MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "never", Expression: "false"}}
		m.Labels = map[string]string{"team": "kept"}
		v.Webhooks = v.Webhooks[:1]
		v.Webhooks[0].FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		v.Webhooks[0].ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		v.Webhooks[0].NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "legacy", Operator: metav1.LabelSelectorOpDoesNotExist},
			{Key: v1alpha1.EnrolledLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
		}}
		v.Webhooks[0].ClientConfig.CABundle = nil
		Expect(admin.Update(ctx, m)).To(Succeed())
		Expect(admin.Update(ctx, v)).To(Succeed())

		beforeV.Webhooks[0].NamespaceSelector.MatchExpressions = append(beforeV.Webhooks[0].NamespaceSelector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: "legacy", Operator: metav1.LabelSelectorOpDoesNotExist})
		Eventually(func(g Gomega) {
			m, v := storedConfigurations(ctx, g)
			g.Expect(m.Webhooks).To(Equal(before.Webhooks))
			g.Expect(m.Labels).To(HaveKeyWithValue("team", "kept"))
			g.Expect(v.Webhooks).To(Equal(beforeV.Webhooks))
		}, 10*time.Second, 50*time.Millisecond).Should(Succeed())
		Expect(a.certificates.made.ready(nil)).To(Succeed())
	})

	It("and the configurations are recreated when deleted", func(ctx SpecContext) {
		_, v := storedConfigurations(ctx, Default)
		Expect(admin.Delete(ctx, v)).To(Succeed())
		Eventually(func(g Gomega) {
			_, again := storedConfigurations(ctx, g)
			g.Expect(again.UID).NotTo(Equal(v.UID))
			g.Expect(again.Webhooks).To(HaveLen(len(v.Webhooks)))
			g.Expect(again.Webhooks[0].ClientConfig.CABundle).To(Equal(v.Webhooks[0].ClientConfig.CABundle))
			g.Expect(again.OwnerReferences).To(ConsistOf(HaveField("Kind", "Namespace")))
		}, 20*time.Second, 50*time.Millisecond).Should(Succeed())
	})

	It("and the configurations of declared kinds are written, restored and emptied", func(ctx SpecContext) {
		wanted, err := a.certificates.ofDeclared(nil)
		Expect(err).NotTo(HaveOccurred())
		for _, configuration := range wanted {
			Expect(admin.Create(ctx, configuration.Create(nil))).To(Succeed())
		}
		// Like a controller, it tries again until other replicas write nothing.
		write := func(kinds ...*declared.Kind) {
			GinkgoHelper()
			Eventually(func() error { return a.certificates.Write(ctx, kinds) }, 20*time.Second, 50*time.Millisecond).Should(Succeed())
		}
		stored := func(g Gomega) *admissionregistrationv1.ValidatingWebhookConfiguration {
			v := &admissionregistrationv1.ValidatingWebhookConfiguration{}
			g.ExpectWithOffset(1, admin.Get(ctx, types.NamespacedName{Name: declaredValidating}, v)).To(Succeed())
			return v
		}
		kind := widgets(GinkgoTB(), 1)
		write(kind)
		before := stored(Default)
		Expect(before.Webhooks).To(HaveLen(3))
		Expect(before.Webhooks).To(HaveEach(SatisfyAll(
			HaveField("ClientConfig.CABundle", Not(BeEmpty())),
			HaveField("ObjectSelector.MatchExpressions", HaveLen(1)),
		)))
		altered := before.DeepCopy()
		altered.Webhooks = altered.Webhooks[1:]
		altered.Webhooks[0].ObjectSelector, altered.Webhooks[0].ClientConfig.CABundle = nil, nil
		Expect(admin.Update(ctx, altered)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(stored(g).Webhooks).To(Equal(before.Webhooks))
		}, 20*time.Second, 50*time.Millisecond).Should(Succeed())
		resting := stored(Default).ResourceVersion
		Consistently(func() string { return stored(Default).ResourceVersion }, time.Second, 50*time.Millisecond).Should(Equal(resting))
		write(widgets(GinkgoTB(), 2))
		Expect(*stored(Default).Webhooks[0].ClientConfig.Service.Path).To(ContainSubstring("/widgets.example.com/2/"))
		write()
		Expect(stored(Default).Webhooks).To(BeEmpty())
	})

	It("survive the removal of the Secret, with a new authority beside the old one", func(ctx SpecContext) {
		secret, serving := storedSecret(ctx), a.certificates.made.serving.Load()
		Expect(admin.Delete(ctx, secret)).To(Succeed())
		Eventually(func(g Gomega) {
			bundle := injected(ctx, g)
			g.Expect(pki.ParseCertificates(bundle)).To(HaveLen(2))
			g.Expect(bytes.HasSuffix(bundle, secret.Data[BundleKey])).To(BeTrue())
		}, 10*time.Second, 50*time.Millisecond).Should(Succeed())
		again := storedSecret(ctx)
		Expect(again.UID).NotTo(Equal(secret.UID))
		Expect(again.Data[corev1.TLSCertKey]).To(Equal(secret.Data[corev1.TLSCertKey]))
		Expect(a.certificates.made.serving.Load().Same(serving)).To(BeTrue())
	})

	It("are served at once after a restart", func(ctx SpecContext) {
		serving := a.certificates.made.serving.Load()
		a.stop()
		b.stop()
		again := startInstance(ctx, nil)
		ready(again)
		Expect(again.certificates.made.serving.Load().Same(serving)).To(BeTrue())
		again.stop()
	})

	It("rotate under a stream of releases without one that fails", func(ctx SpecContext) {
		Expect(admin.Delete(ctx, storedSecret(ctx))).To(Succeed())
		installConfigurations(ctx)
		const validity = 16 * time.Second // a renewal may be seconds late on a busy machine
		short := func(o *Options) { o.Validity, o.AuthorityValidity = validity, 36*validity/10 }
		a, b := startInstance(ctx, short), startInstance(ctx, short)
		ready(a, b)
		first := pki.ParseCertificates(storedSecret(ctx).Data[BundleKey])[0]
		Eventually(func(g Gomega) {
			d := wrappers.MakeDeployment(shop, "blocked").Obj()
			g.Expect(admin.Create(ctx, d, client.DryRunAll)).To(Succeed())
			g.Expect(d.Labels).To(HaveKey(v1alpha1.VersionLabel))
		}, 10*time.Second, 50*time.Millisecond).Should(Succeed())

		blocked, free := wrappers.MakeDeployment(shop, "blocked").Obj(), wrappers.MakeDeployment(shop, "free").Obj()
		Expect(admin.Create(ctx, blocked)).To(Succeed())
		Expect(admin.Create(ctx, free)).To(Succeed())
		Expect(admin.Patch(ctx, blocked, client.RawPatch(types.MergePatchType, fmt.Appendf(nil,
			`{"metadata":{"labels":{%q:"1700000000"},"annotations":{%q:%q}}}`,
			v1alpha1.SuspendLabel, v1alpha1.SuspendedByAnnotation, blocked.Labels[v1alpha1.VersionLabel])))).To(Succeed())
		release := func(n int) client.Patch {
			return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"labels":{"n":"%d"}}}}}`, n))
		}

		served := map[string]bool{}
		authorities := map[string]bool{}
		most := 0
		releases := 0
		for n := 0; ; n++ {
			// The bundle from before the handshake must verify it.
			bundle := injected(ctx, Default)
			known := pki.ParseCertificates(bundle)
			for _, i := range []*instance{a, b} {
				Expect(handshake(i.address, pool(bundle))).To(Succeed(), "handshake %d of %s", n, i.address)
				served[i.certificates.made.serving.Load().Certificate.Leaf.SerialNumber.String()] = true
			}
			for _, ca := range known {
				authorities[ca.Subject.CommonName] = true
			}
			most = max(most, len(known))

			version := free.Labels[v1alpha1.VersionLabel]
			Expect(admin.Patch(ctx, free, release(n))).To(Succeed(), "release %d", n)
			Expect(free.Labels[v1alpha1.VersionLabel]).NotTo(Equal(version), "release %d went unseen", n)
			Expect(admin.Patch(ctx, blocked.DeepCopy(), release(n))).
				To(MatchError(ContainSubstring("deployment blocked is suspended")), "release %d", n)
			releases++

			if gone := len(known) > 0 && known[len(known)-1].NotBefore.After(first.NotBefore); gone && n > 0 && time.Now().After(first.NotAfter) {
				break
			}
			Expect(time.Since(first.NotAfter)).To(BeNumerically("<", 10*time.Second), "the first authority is still there")
		}
		GinkgoWriter.Printf("%d releases, %d certificates, %d authorities, at most %d at a time\n", releases, len(served), len(authorities), most)
		Expect(len(served)).To(BeNumerically(">=", 4))
		Expect(len(authorities)).To(BeNumerically(">=", 4))
		Expect(most).To(BeNumerically(">=", 2))
	})
})

// Another program injects the authority, and the manifests are applied in all ways.
var _ = Describe("Configurations around a certificate from files", Ordered, func() {
	const authority = "the authority"
	var (
		kubectl  func(args ...string) string
		manifest string
		expires  atomic.Int64
		i        *instance
	)
	versions := func(ctx context.Context) string {
		m, v := storedConfigurations(ctx, Default)
		return m.ResourceVersion + " " + v.ResourceVersion
	}
	quiet := func(ctx context.Context) {
		GinkgoHelper()
		before := versions(ctx)
		Consistently(func() string { return versions(ctx) }, time.Second, 50*time.Millisecond).Should(Equal(before))
	}
	owned := func(ctx context.Context, g Gomega) {
		ns := &corev1.Namespace{}
		g.Expect(admin.Get(ctx, types.NamespacedName{Name: ours}, ns)).To(Succeed())
		m, v := storedConfigurations(ctx, g)
		want := ConsistOf(metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: ours, UID: ns.UID})
		g.Expect(m.OwnerReferences).To(want)
		g.Expect(v.OwnerReferences).To(want)
	}
	inject := func(ctx context.Context) {
		GinkgoHelper()
		m, v := storedConfigurations(ctx, Default)
		m.Webhooks[0].ClientConfig.CABundle = []byte(authority)
		for i := range v.Webhooks {
			v.Webhooks[i].ClientConfig.CABundle = []byte(authority)
		}
		Expect(admin.Update(ctx, m)).To(Succeed())
		Expect(admin.Update(ctx, v)).To(Succeed())
	}

	BeforeAll(func(ctx SpecContext) {
		user, err := testEnv.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
		Expect(err).NotTo(HaveOccurred())
		cli, err := user.Kubectl()
		Expect(err).NotTo(HaveOccurred())
		kubectl = func(args ...string) string {
			GinkgoHelper()
			out, problem, err := cli.Run(args...)
			Expect(err).NotTo(HaveOccurred(), "%v", problem)
			said, err := io.ReadAll(out)
			Expect(err).NotTo(HaveOccurred())
			return string(said)
		}
		wanted, err := NewConfigurations(hooks.Configurations(workload.Defended()), mutating, validating,
			Target{Namespace: ours, Service: service, Port: balancer.port})
		Expect(err).NotTo(HaveOccurred())
		var text bytes.Buffer
		for _, configuration := range wanted {
			Expect(client.IgnoreNotFound(admin.Delete(ctx, configuration.Object()))).To(Succeed())
			object := configuration.Create(nil)
			object.SetAnnotations(map[string]string{injector: ours + "/cert"})
			data, err := yaml.Marshal(object)
			Expect(err).NotTo(HaveOccurred())
			fmt.Fprintf(&text, "---\n%s", data)
		}
		manifest = filepath.Join(GinkgoT().TempDir(), "configurations.yaml")
		Expect(os.WriteFile(manifest, text.Bytes(), 0o600)).To(Succeed())
		kubectl("apply", "-f", manifest)
		inject(ctx)

		dir := GinkgoT().TempDir()
		ca, err := pki.NewCA("elsewhere", time.Now(), 2*time.Hour)
		Expect(err).NotTo(HaveOccurred())
		server, err := ca.IssueServer("hooks", []string{service + "." + ours + ".svc"}, time.Now(), time.Hour)
		Expect(err).NotTo(HaveOccurred())
		for name, data := range map[string][]byte{"cert": server.CertPEM, "key": server.KeyPEM} {
			Expect(os.WriteFile(filepath.Join(dir, name), data, 0o600)).To(Succeed())
		}
		i = startInstance(ctx, func(o *Options) {
			o.Dir, o.CertName, o.KeyName = dir, "cert", "key"
			o.OnServe = func(notAfter time.Time) { expires.Store(notAfter.Unix()) }
		})
		DeferCleanup(func() { i.stop() })
	})

	It("get the namespace as owner by one write, and OnServe gets the expiry of the certificate", func(ctx SpecContext) {
		Eventually(func(g Gomega) { owned(ctx, g) }, 20*time.Second, 50*time.Millisecond).Should(Succeed())
		quiet(ctx)
		Expect(time.Unix(expires.Load(), 0)).To(BeTemporally("~", time.Now().Add(time.Hour), time.Minute))
	})

	It("keep owner and authority when the manifests are applied again", func(ctx SpecContext) {
		before := versions(ctx)
		Expect(kubectl("apply", "-f", manifest)).To(ContainSubstring("unchanged"))
		Expect(versions(ctx)).To(Equal(before))
		kubectl("apply", "--server-side", "--force-conflicts", "-f", manifest)
		owned(ctx, Default)
		quiet(ctx)
		before = versions(ctx)
		kubectl("apply", "--server-side", "-f", manifest)
		Expect(versions(ctx)).To(Equal(before))
		m, v := storedConfigurations(ctx, Default)
		Expect(string(m.Webhooks[0].ClientConfig.CABundle) + string(v.Webhooks[1].ClientConfig.CABundle)).To(Equal(authority + authority))
	})

	It("are restored around the authority when altered", func(ctx SpecContext) {
		_, before := storedConfigurations(ctx, Default)
		v := before.DeepCopy()
		v.Webhooks = v.Webhooks[:1]
		v.Webhooks[0].FailurePolicy = ptr.To(admissionregistrationv1.Fail)
		v.Webhooks[0].ClientConfig.CABundle = []byte("another")
		Expect(admin.Update(ctx, v)).To(Succeed())
		for n := range before.Webhooks {
			before.Webhooks[n].ClientConfig.CABundle = []byte("another")
		}
		Eventually(func(g Gomega) {
			_, v := storedConfigurations(ctx, g)
			g.Expect(v.Webhooks).To(Equal(before.Webhooks))
			g.Expect(v.Annotations).To(Equal(before.Annotations))
		}, 10*time.Second, 50*time.Millisecond).Should(Succeed())
		quiet(ctx)
	})

	It("are recreated when deleted, without an authority", func(ctx SpecContext) {
		_, gone := storedConfigurations(ctx, Default)
		Expect(admin.Delete(ctx, gone)).To(Succeed())
		Eventually(func(g Gomega) {
			_, v := storedConfigurations(ctx, g)
			g.Expect(v.UID).NotTo(Equal(gone.UID))
			g.Expect(v.Annotations).To(Equal(map[string]string{injector: ours + "/cert"}))
			g.Expect(v.Webhooks).To(HaveLen(len(gone.Webhooks)))
			g.Expect(v.Webhooks[0].ClientConfig.CABundle).To(BeEmpty())
			owned(ctx, g)
		}, 20*time.Second, 50*time.Millisecond).Should(Succeed())
		inject(ctx)
		quiet(ctx)
	})

	It("are left alone when they call a URL", func(ctx SpecContext) {
		m, v := storedConfigurations(ctx, Default)
		for n := range v.Webhooks {
			v.Webhooks[n].ClientConfig = admissionregistrationv1.WebhookClientConfig{
				URL: ptr.To("https://127.0.0.1:9443/x"), CABundle: []byte(authority),
			}
		}
		v.OwnerReferences = nil
		Expect(admin.Update(ctx, v)).To(Succeed())
		m.Webhooks[0].TimeoutSeconds, m.OwnerReferences = ptr.To[int32](9), nil
		Expect(admin.Update(ctx, m)).To(Succeed())
		quiet(ctx)
		Expect(admin.Delete(ctx, m)).To(Succeed())
		Consistently(func() bool {
			return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(m), m.DeepCopy()))
		}, 3*time.Second, 100*time.Millisecond).Should(BeTrue())
	})
})

// loadBalancer forwards connections of the API server to ready replicas.
type loadBalancer struct {
	listener net.Listener
	port     int32

	mu       sync.Mutex
	backends []string
	next     int
}

func newLoadBalancer() *loadBalancer {
	listener, err := net.Listen("tcp", "localhost:0")
	Expect(err).NotTo(HaveOccurred())
	address, ok := listener.Addr().(*net.TCPAddr)
	Expect(ok).To(BeTrue())
	l := &loadBalancer{listener: listener, port: int32(address.Port)}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go l.forward(connection)
		}
	}()
	return l
}

func (l *loadBalancer) close() { Expect(l.listener.Close()).To(Succeed()) }

func (l *loadBalancer) add(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backends = append(l.backends, address)
}

func (l *loadBalancer) remove(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, backend := range l.backends {
		if backend == address {
			l.backends = append(l.backends[:i:i], l.backends[i+1:]...)
			return
		}
	}
}

func (l *loadBalancer) pick() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.backends) == 0 {
		return "", errors.New("no replica is ready")
	}
	l.next++
	return l.backends[l.next%len(l.backends)], nil
}

func (l *loadBalancer) forward(from net.Conn) {
	defer from.Close()
	address, err := l.pick()
	if err != nil {
		return
	}
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		defer from.Close()
		_, _ = io.Copy(from, to)
	}()
	_, _ = io.Copy(to, from)
}
