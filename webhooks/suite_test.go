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
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

func TestAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "Webhooks against an API server")
}

const (
	enrolled = "enrolled"
	free     = "free"
	operator = "altershield-operator"
)

var (
	testEnv *envtest.Environment
	// jane is a user; asOperator is the operator; sameUser is a user with the operator's
	// credentials.
	jane, asOperator, sameUser client.Client
	warnings                   = &warningRecorder{}
	stopServer                 func()
	// asking is the admission check; off by default.
	asking = &fakeChecker{settings: unasked}
)

func unasked(s *settings.Settings) error {
	s.AdmissionCheck = false
	return nil
}

// warningRecorder keeps the warnings of the API server to jane.
type warningRecorder struct{ texts []string }

func (w *warningRecorder) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

var _ = BeforeSuite(func(ctx SpecContext) {
	root := repositoryRoot()
	binaries := filepath.Join(root, "bin", "k8s")
	for _, name := range []string{"etcd", "kube-apiserver"} {
		_, err := os.Stat(filepath.Join(binaries, name))
		Expect(err).NotTo(HaveOccurred(), "run make controlplane")
	}
	testEnv = &envtest.Environment{
		BinaryAssetsDirectory: binaries,
		WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{filepath.Join(root, "config", "webhook", "manifests.yaml")}},
	}
	_, err := testEnv.Start()
	DeferCleanup(func() { Expect(testEnv.Stop()).To(Succeed()) })
	Expect(err).NotTo(HaveOccurred())

	jane = connect("jane", func(c *rest.Config) { c.WarningHandler = warnings })
	sameUser = connect(operator, nil)
	asOperator = client.WithFieldOwner(sameUser, v1alpha1.FieldManager)
	Expect(jane.Create(ctx, wrappers.MakeNamespace(enrolled).Enrolled().Obj())).To(Succeed())
	Expect(jane.Create(ctx, wrappers.MakeNamespace(free).Obj())).To(Succeed())

	startServer()
	DeferCleanup(func() { stopServer() })
	// The API server loads webhook configurations with a delay.
	Eventually(func(g Gomega) {
		d := sleep("probe")
		g.Expect(jane.Create(ctx, d, client.DryRunAll)).To(Succeed())
		g.Expect(d.Labels).To(HaveKey(v1alpha1.VersionLabel))
	}, time.Minute).Should(Succeed())
	d := create(ctx, "probe")
	block(ctx, d)
	Eventually(func() error {
		return jane.Patch(ctx, d.DeepCopy(), mergePatch(`{"spec":{"template":{"metadata":{"labels":{"test":"x"}}}}}`), client.DryRunAll)
	}, time.Minute).Should(MatchError(ContainSubstring("suspended")))
})

func repositoryRoot() string {
	dir, err := os.Getwd()
	Expect(err).NotTo(HaveOccurred())
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		Expect(filepath.Dir(dir)).NotTo(Equal(dir), "no go.mod above the test")
		dir = filepath.Dir(dir)
	}
}

func connect(user string, configure func(*rest.Config)) client.Client {
	u, err := testEnv.AddUser(envtest.User{Name: user, Groups: []string{"system:masters"}}, nil)
	Expect(err).NotTo(HaveOccurred())
	config := rest.CopyConfig(u.Config())
	config.QPS = -1
	if configure != nil {
		configure(config)
	}
	c, err := client.New(config, client.Options{})
	Expect(err).NotTo(HaveOccurred())
	return c
}

// startServer serves the webhooks until stopServer.
func startServer() {
	options := testEnv.WebhookInstallOptions
	mgr, err := ctrl.NewManager(testEnv.Config, ctrl.Options{
		Logger:  GinkgoLogr,
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: NewServer(ServerOptions{
			Host: options.LocalServingHost, Port: options.LocalServingPort, Log: GinkgoLogr,
			CertDir: options.LocalServingCertDir, CertName: "tls.crt", KeyName: "tls.key",
		}),
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(SetupWithManager(mgr, Options{
		Kinds: workload.NewRegistry(append(workload.Defended().Kinds(), declared.NewWorkloads(widgets(1)))...),
		Self:  operator, Log: GinkgoLogr, Checker: asking, Settings: asking.Settings,
	})).To(Succeed())
	mgr.GetWebhookServer().Register(lateWebhookPath, &admission.Webhook{Handler: admission.HandlerFunc(lateWebhook)})

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stopServer = func() {
		cancel()
		Eventually(done, time.Minute).Should(Receive(Succeed()))
		stopServer = func() {}
	}
	address := net.JoinHostPort(options.LocalServingHost, strconv.Itoa(options.LocalServingPort))
	Eventually(func() error {
		connection, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err
		}
		return connection.Close()
	}, time.Minute).Should(Succeed())
}

// sleep returns the Deployment of the walkthrough.
func sleep(name string) *appsv1.Deployment {
	return wrappers.MakeDeployment(enrolled, name).App("sleep").Replicas(5).TemplateLabel("test", "123").
		Container(func(c *corev1.Container) { c.Name, c.ImagePullPolicy = "sleep", corev1.PullIfNotPresent }).Obj()
}

func create(ctx context.Context, name string) *appsv1.Deployment {
	GinkgoHelper()
	d := sleep(name)
	Expect(jane.Create(ctx, d)).To(Succeed())
	return d
}

func mergePatch(data string) client.Patch {
	return client.RawPatch("application/merge-patch+json", []byte(data))
}

// patched applies a merge patch as jane and returns the new object.
func patched(ctx context.Context, d *appsv1.Deployment, data string) *appsv1.Deployment {
	GinkgoHelper()
	result := d.DeepCopy()
	Expect(jane.Patch(ctx, result, mergePatch(data))).To(Succeed())
	return result
}

func template(labels string) string {
	return `"spec":{"template":{"metadata":{"labels":{` + labels + `}}}}`
}

var (
	repair  = template(`"test":"1234"`)
	another = template(`"test":"12345"`)
)

func meta(kind, key, value string) string {
	return fmt.Sprintf(`"metadata":{%q:{%q:%q}}`, kind, key, value)
}

// block does what the operator does when a release fails.
func block(ctx context.Context, d *appsv1.Deployment) {
	GinkgoHelper()
	Expect(asOperator.Patch(ctx, d, mergePatch(fmt.Sprintf(`{"metadata":{"labels":{%q:"1700000000"},"annotations":{%q:%q}}}`,
		v1alpha1.SuspendLabel, v1alpha1.SuspendedByAnnotation, d.Labels[v1alpha1.VersionLabel])))).To(Succeed())
	Expect(d.Labels).To(HaveKey(v1alpha1.SuspendLabel))
}

func blocked(ctx context.Context, name string) *appsv1.Deployment {
	GinkgoHelper()
	d := create(ctx, name)
	block(ctx, d)
	seen(ctx, d, v1alpha1.SuspendLabel)
	return d
}

// seen waits until the cache of the API server has a label. The API server applies a patch to
// the cached object and calls admission, and does both again if etcd has a newer object.
func seen(ctx context.Context, d *appsv1.Deployment, label string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var shown appsv1.Deployment
		fromCache := &client.GetOptions{Raw: &metav1.GetOptions{ResourceVersion: "0"}}
		g.Expect(jane.Get(ctx, client.ObjectKeyFromObject(d), &shown, fromCache)).To(Succeed())
		g.Expect(shown.Labels).To(HaveKey(label))
	}, time.Minute).Should(Succeed())
}

func reload(ctx context.Context, d *appsv1.Deployment) *appsv1.Deployment {
	GinkgoHelper()
	result := &appsv1.Deployment{}
	Expect(jane.Get(ctx, client.ObjectKeyFromObject(d), result)).To(Succeed())
	return result
}

func scale(ctx context.Context, d *appsv1.Deployment, replicas int32) {
	GinkgoHelper()
	Expect(jane.SubResource("scale").Update(ctx, d, client.WithSubResourceBody(
		&autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}))).To(Succeed())
	Expect(reload(ctx, d).Spec.Replicas).To(HaveValue(Equal(replicas)))
}

// beDenied matches the denial of a blocked workload.
func beDenied(name string) OmegaMatcher {
	return SatisfyAll(
		WithTransform(apierrors.IsForbidden, BeTrue()),
		MatchError(HavePrefix(`admission webhook "vdeployment.kb.io" denied the request: deployment `+name+` is suspended: `)),
	)
}

func haveVersion(version string) OmegaMatcher {
	return SatisfyAll(
		WithTransform(func(d *appsv1.Deployment) string { return d.Labels[v1alpha1.VersionLabel] }, Equal(version)),
		WithTransform(func(d *appsv1.Deployment) string { return d.Spec.Template.Labels[v1alpha1.VersionLabel] }, Equal(version)),
	)
}

func haveRelease(n string) OmegaMatcher {
	return WithTransform(func(d *appsv1.Deployment) map[string]string { return d.Annotations },
		HaveKeyWithValue(v1alpha1.ReleaseAnnotation, n))
}

var _ = Describe("Admission of Deployments", Ordered, func() {
	BeforeEach(func() { warnings.texts = nil })

	Describe("versions", func() {
		It("are as documented", func(ctx SpecContext) {
			d := create(ctx, "sleep")
			Expect(d).To(SatisfyAll(haveVersion(sleepVersion), haveRelease("1")))
			Expect(patched(ctx, d, "{"+repair+"}")).To(SatisfyAll(haveVersion(repairVersion), haveRelease("2")))
			Expect(patched(ctx, d, "{"+template(`"test":"123"`)+"}")).To(SatisfyAll(haveVersion(sleepVersion), haveRelease("3")))
		})

		It("are the same when computed from the stored object", func(ctx SpecContext) {
			d := sleep("rich")
			d.Spec.Template.Spec.Volumes = []corev1.Volume{
				{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "ephemeral", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
					VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
						Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1024Mi")}},
					}},
				}}},
			}
			container := &d.Spec.Template.Spec.Containers[0]
			container.Env = []corev1.EnvVar{
				{Name: "A", Value: "<&>\u2028 é"},
				{Name: "B", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
			}
			container.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("0.5Gi")}
			Expect(jane.Create(ctx, d)).To(Succeed())

			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
			Expect(jane.Get(ctx, client.ObjectKeyFromObject(d), u)).To(Succeed())
			content, ok, err := unstructured.NestedMap(u.Object, "spec", "template")
			Expect(ok, err).To(BeTrue())
			Expect(workload.Version(content)).To(Equal(d.Labels[v1alpha1.VersionLabel]))
		})

		It("change with annotations of the template, such as those of kubectl rollout restart", func(ctx SpecContext) {
			d := create(ctx, "restarted")
			got := patched(ctx, d, `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2024-01-01T00:00:00Z"}}}}}`)
			Expect(got).To(haveRelease("2"))
			Expect(got).To(haveVersion(got.Labels[v1alpha1.VersionLabel]))
			Expect(got).NotTo(haveVersion(sleepVersion))
		})

		It("stay when anything but the template changes", func(ctx SpecContext) {
			d := create(ctx, "same")
			got := patched(ctx, d, `{`+meta("annotations", "deployment.kubernetes.io/revision", "7")+`,"spec":{"replicas":2,"paused":true}}`)
			Expect(got).To(SatisfyAll(haveVersion(sleepVersion), haveRelease("1")))
			scale(ctx, d, 9)
			Expect(reload(ctx, d)).To(SatisfyAll(haveVersion(sleepVersion), haveRelease("1")))
		})

		It("stay in a dry run", func(ctx SpecContext) {
			d := create(ctx, "dry")
			tried := d.DeepCopy()
			Expect(jane.Patch(ctx, tried, mergePatch("{"+repair+"}"), client.DryRunAll)).To(Succeed())
			Expect(tried).To(SatisfyAll(haveVersion(repairVersion), haveRelease("2")))
			Expect(reload(ctx, d).ResourceVersion).To(Equal(d.ResourceVersion))
		})

		It("survive a replace by the manifest", func(ctx SpecContext) {
			d := create(ctx, "replaced")
			processed := meta("labels", v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed)
			Expect(asOperator.Patch(ctx, d, mergePatch("{"+processed+"}"))).To(Succeed())

			again := sleep("replaced")
			again.Labels = nil
			Expect(jane.Update(ctx, again)).To(Succeed())
			Expect(again).To(SatisfyAll(haveVersion(sleepVersion), haveRelease("1")))
			Expect(again.Labels).To(HaveKeyWithValue(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed))
			Expect(again.Generation).To(Equal(d.Generation))

			Expect(patched(ctx, d, "{"+repair+"}").Labels).NotTo(HaveKey(v1alpha1.DefenseStatusLabel))
		})

		It("stay when a manifest is applied twice, server-side", func(ctx SpecContext) {
			apply := func() *unstructured.Unstructured {
				GinkgoHelper()
				u := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "apps/v1", "kind": "Deployment",
					"metadata": map[string]any{"name": "applied", "namespace": enrolled},
					"spec": map[string]any{
						"selector": map[string]any{"matchLabels": map[string]any{"app": "sleep"}},
						"template": map[string]any{
							"metadata": map[string]any{"labels": map[string]any{"app": "sleep", "test": "123"}},
							"spec": map[string]any{"containers": []any{map[string]any{
								"name": "sleep", "image": "busybox", "imagePullPolicy": "IfNotPresent", "command": []any{"/bin/sleep", "infinity"},
							}}},
						},
					},
				}}
				Expect(jane.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("gitops"), client.ForceOwnership)).To(Succeed())
				return u
			}
			first := apply()
			Expect(first.GetLabels()).To(HaveKeyWithValue(v1alpha1.VersionLabel, sleepVersion))
			second := apply()
			Expect(second.GetGeneration()).To(Equal(first.GetGeneration()))
			Expect(second.GetResourceVersion()).To(Equal(first.GetResourceVersion()))
		})

		It("leave a baseline alone until it is released", func(ctx SpecContext) {
			ns := wrappers.MakeNamespace("late")
			Expect(jane.Create(ctx, ns.Obj())).To(Succeed())
			d := sleep("baseline")
			d.Namespace = "late"
			Expect(jane.Create(ctx, d)).To(Succeed())
			Expect(jane.Update(ctx, ns.Enrolled().Obj())).To(Succeed())
			// The API server reads the namespace from a cache.
			Eventually(func() map[string]string {
				return patchedDryRun(ctx, d, "{"+repair+"}").Labels
			}, time.Minute).Should(HaveKey(v1alpha1.VersionLabel))

			got := patched(ctx, d, `{`+meta("annotations", "a", "b")+`,"spec":{"replicas":1}}`)
			Expect(got).To(haveVersion(""))
			Expect(got.Annotations).NotTo(HaveKey(v1alpha1.ReleaseAnnotation))
			Expect(patched(ctx, d, "{"+repair+"}")).To(SatisfyAll(haveVersion(repairVersion), haveRelease("1")))
		})

		It("fit names of 253 characters", func(ctx SpecContext) {
			d := blocked(ctx, strings.Repeat("long.name-", 25)+"end")
			Expect(d.Name).To(HaveLen(253))
			Expect(d).To(haveVersion(sleepVersion))
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(beDenied(d.Name))
		})

		It("are given on generated names", func(ctx SpecContext) {
			d := sleep("")
			d.GenerateName = "generated-"
			Expect(jane.Create(ctx, d)).To(Succeed())
			Expect(d).To(haveVersion(sleepVersion))
		})

		It("are not given outside enrolled namespaces", func(ctx SpecContext) {
			d := sleep("sleep")
			d.Namespace = free
			Expect(jane.Create(ctx, d)).To(Succeed())
			Expect(d).To(haveVersion(""))
			Expect(d.Annotations).NotTo(HaveKey(v1alpha1.ReleaseAnnotation))

			got := patched(ctx, d, `{`+meta("labels", v1alpha1.SuspendLabel, "1")+`}`)
			Expect(patched(ctx, got, "{"+repair+"}")).To(haveVersion(""))
		})

		It("are not given to a workload that opted out", func(ctx SpecContext) {
			d := sleep("opted-out")
			d.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled
			Expect(jane.Create(ctx, d)).To(Succeed())
			Expect(d).To(haveVersion(""))
		})

		It("are not put into the template of the operator's own write", func(ctx SpecContext) {
			d := create(ctx, "rolled-back")
			Expect(asOperator.Patch(ctx, d, mergePatch(
				`{"spec":{"template":{"metadata":{"labels":{"test":"1234","`+v1alpha1.VersionLabel+`":null}}}}}`))).To(Succeed())
			Expect(d.Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, repairVersion))
			Expect(d.Spec.Template.Labels).NotTo(HaveKey(v1alpha1.VersionLabel))
			Expect(d).To(haveRelease("2"))
			Expect(patched(ctx, d, `{"spec":{"replicas":1}}`).Spec.Template.Labels).NotTo(HaveKey(v1alpha1.VersionLabel))
		})
	})

	Describe("a blocked workload", func() {
		It("refuses a release, and says what to do", func(ctx SpecContext) {
			d := blocked(ctx, "refused")
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(beDenied("refused"))
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(MatchError(ContainSubstring(
				`; blocked since 2023-11-14T22:13:20Z. Override it, then release again: kubectl label deployment refused ` +
					v1alpha1.IgnoredSuspendLabel + `=true --overwrite -n ` + enrolled)))
			Expect(warnings.texts).To(BeEmpty(), "CI shows none")
			Expect(jane.Update(ctx, sleep("refused"))).To(beDenied("refused"), "a replace loses the block")
			Expect(sameUser.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).
				To(beDenied("refused"), "a developer with the operator's credentials")
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"), client.DryRunAll)).To(beDenied("refused"))
			Expect(reload(ctx, d).ResourceVersion).To(Equal(d.ResourceVersion))
		})

		It("refuses to lose the block", func(ctx SpecContext) {
			d := blocked(ctx, "kept")
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(`{"metadata":{"labels":{"`+v1alpha1.SuspendLabel+`":null}}}`))).To(beDenied("kept"))
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(`{"metadata":{"labels":null}}`))).To(beDenied("kept"))
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+meta("labels", v1alpha1.SuspendLabel, "1")+"}"))).To(beDenied("kept"))
		})

		It("refuses to lose a block that has no value", func(ctx SpecContext) {
			d := patched(ctx, create(ctx, "empty"), "{"+meta("labels", v1alpha1.SuspendLabel, "")+"}")
			seen(ctx, d, v1alpha1.SuspendLabel)
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(`{"metadata":{"labels":{"`+v1alpha1.SuspendLabel+`":null}}}`))).To(beDenied("empty"))
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(`{"metadata":{"labels":null}}`))).To(beDenied("empty"))
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+meta("labels", v1alpha1.SuspendLabel, "1")+"}"))).To(beDenied("empty"))
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(beDenied("empty"))
			scale(ctx, d, 2)
			Expect(patched(ctx, d, "{"+meta("labels", "a", "b")+"}").Labels).To(HaveKeyWithValue(v1alpha1.SuspendLabel, ""))
			unblock := fmt.Sprintf(`{"metadata":{"labels":{%q:null,%q:"true"}}}`, v1alpha1.SuspendLabel, v1alpha1.IgnoredSuspendLabel)
			Expect(patched(ctx, d, unblock).Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		})

		It("lets everything else pass", func(ctx SpecContext) {
			d := blocked(ctx, "usable")
			scale(ctx, d, 2)
			spec := `{"spec":{"replicas":3,"paused":true,"minReadySeconds":1,"strategy":{"type":"Recreate","rollingUpdate":null}}}`
			Expect(patched(ctx, d, spec).Spec.Paused).To(BeTrue())

			// The deployment controller updates the whole object.
			update := reload(ctx, d)
			update.Annotations["deployment.kubernetes.io/revision"] = "1"
			Expect(jane.Update(ctx, update)).To(Succeed())
			update.Status.ObservedGeneration = update.Generation
			update.Status.Replicas = 3
			Expect(jane.Status().Update(ctx, update)).To(Succeed())

			Expect(patched(ctx, d, `{`+meta("labels", "a", "b")+`}`).Labels).To(HaveKey(v1alpha1.SuspendLabel))
			Expect(warnings.texts).To(BeEmpty())
			Expect(jane.Delete(ctx, update, client.PropagationPolicy(metav1.DeletePropagationForeground))).To(Succeed())
			// The Deployment is being deleted, and still has the finalizer of foreground deletion.
			Expect(patched(ctx, d, `{"metadata":{"finalizers":null}}`).DeletionTimestamp).NotTo(BeNil())
		})

		It("obeys the operator", func(ctx SpecContext) {
			d := blocked(ctx, "obedient")
			Expect(asOperator.Patch(ctx, d, mergePatch("{"+repair+"}"))).To(Succeed())
			Expect(d.Labels).To(HaveKey(v1alpha1.SuspendLabel))
			Expect(asOperator.Patch(ctx, d, mergePatch(fmt.Sprintf(`{"metadata":{"labels":{%q:null},"annotations":{%q:null}}}`,
				v1alpha1.SuspendLabel, v1alpha1.SuspendedByAnnotation)))).To(Succeed())
			Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
			Expect(patched(ctx, d, "{"+another+"}")).To(haveRelease("3"))
		})

		It("opts out with a release", func(ctx SpecContext) {
			d := blocked(ctx, "leaving")
			got := patched(ctx, d, `{`+meta("labels", v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)+`,`+repair+`}`)
			Expect(got).To(haveVersion(sleepVersion))
		})

		DescribeTable("takes one release with an override",
			func(ctx SpecContext, name string, release func(context.Context, *appsv1.Deployment) *appsv1.Deployment) {
				d := blocked(ctx, name)
				got := release(ctx, d)
				Expect(got).To(SatisfyAll(haveVersion(repairVersion), haveRelease("2")))
				Expect(got.Labels).To(HaveKey(v1alpha1.SuspendLabel))
				Expect(got.Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel))
				Expect(got.Annotations[v1alpha1.OverrideAnnotation]).To(MatchRegexp(`^` + repairVersion + ` \d+ jane$`))
				Expect(got.Annotations).To(HaveKey(v1alpha1.SuspendedByAnnotation))

				Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+another+"}"))).To(beDenied(name))
				// The label may be set again, as by a manifest that has it.
				Expect(patched(ctx, d, `{`+meta("labels", v1alpha1.IgnoredSuspendLabel, "true")+`}`).Labels).
					To(HaveKey(v1alpha1.IgnoredSuspendLabel))
			},
			Entry("in the same request", "override-with", func(ctx context.Context, d *appsv1.Deployment) *appsv1.Deployment {
				return patched(ctx, d, `{`+meta("labels", v1alpha1.IgnoredSuspendLabel, "true")+`,`+repair+`}`)
			}),
			Entry("in an earlier request", "override-before", func(ctx context.Context, d *appsv1.Deployment) *appsv1.Deployment {
				labelled := patched(ctx, d, `{`+meta("labels", v1alpha1.IgnoredSuspendLabel, "true")+`}`)
				Expect(labelled.Labels).To(HaveKey(v1alpha1.IgnoredSuspendLabel))
				Expect(labelled.Annotations).NotTo(HaveKey(v1alpha1.OverrideAnnotation))
				return patched(ctx, d, "{"+repair+"}")
			}),
		)

		It("is unblocked with an override", func(ctx SpecContext) {
			d := blocked(ctx, "unblocked")
			replacement := sleep("unblocked")
			replacement.Labels[v1alpha1.IgnoredSuspendLabel] = v1alpha1.IgnoredSuspendValue
			replacement.Spec.Template.Labels["test"] = "1234"
			Expect(jane.Update(ctx, replacement)).To(Succeed())
			got := reload(ctx, d)
			Expect(got).To(SatisfyAll(haveVersion(repairVersion), haveRelease("2")))
			Expect(got.Labels).NotTo(Or(HaveKey(v1alpha1.SuspendLabel), HaveKey(v1alpha1.IgnoredSuspendLabel)))
			Expect(got.Annotations).NotTo(HaveKey(v1alpha1.SuspendedByAnnotation))
			Expect(got.Annotations).To(HaveKey(v1alpha1.OverrideAnnotation))
		})

		It("resumes the rollout that the operator halted", func(ctx SpecContext) {
			d := blocked(ctx, "halted")
			halted := meta("annotations", v1alpha1.HaltedAnnotation, sleepVersion)
			Expect(asOperator.Patch(ctx, d, mergePatch(`{`+halted+`,"spec":{"paused":true}}`))).To(Succeed())
			Expect(patched(ctx, d, `{`+meta("labels", v1alpha1.IgnoredSuspendLabel, "true")+`,`+repair+`}`).Spec.Paused).To(BeFalse())
		})

		It("refuses a stale override until it is set again", func(ctx SpecContext) {
			d := create(ctx, "stale")
			d = patched(ctx, d, `{`+meta("labels", v1alpha1.IgnoredSuspendLabel, "true")+`}`)
			block(ctx, d)
			stale := meta("annotations", v1alpha1.OverrideStaleAnnotation, "true")
			Expect(asOperator.Patch(ctx, d, mergePatch("{"+stale+"}"))).To(Succeed())

			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(beDenied("stale"))
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(`{"metadata":{"annotations":null},`+repair+`}`))).To(beDenied("stale"))
			got := patched(ctx, d, `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":null}}}`)
			Expect(got.Annotations).NotTo(HaveKey(v1alpha1.OverrideStaleAnnotation))
			Expect(patched(ctx, d, `{`+meta("labels", v1alpha1.IgnoredSuspendLabel, "true")+`,`+repair+`}`)).To(haveVersion(repairVersion))
		})

		It("is not passed by an override that names another resource version", func(ctx SpecContext) {
			d := blocked(ctx, "forged")
			forged := meta("annotations", v1alpha1.OverrideAnnotation, "x 1 jane")
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(`{`+forged+`,`+repair+`}`))).To(beDenied("forged"))
		})
	})

	Describe("while the webhooks are down", Ordered, func() {
		var before, blockedBefore *appsv1.Deployment

		BeforeAll(func(ctx SpecContext) {
			before = create(ctx, "down-free")
			blockedBefore = blocked(ctx, "down-blocked")
			stopServer()
		})
		AfterAll(func() { startServer() })

		It("workloads are created and released without versions", func(ctx SpecContext) {
			Expect(create(ctx, "down-created")).To(haveVersion(""))
			Expect(patched(ctx, before, "{"+repair+"}")).To(haveVersion(sleepVersion))
			scale(ctx, before, 1)
		})

		It("a blocked workload scales and takes annotations, and is still blocked", func(ctx SpecContext) {
			d := blockedBefore
			scale(ctx, d, 4)
			patched(ctx, d, `{`+meta("annotations", "a", "b")+`,"spec":{"replicas":1}}`)
			unavailable := MatchError(ContainSubstring(`failed calling webhook "vdeployment.kb.io"`))
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(unavailable)
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(`{"metadata":{"labels":{"`+v1alpha1.SuspendLabel+`":null}}}`))).To(unavailable)
			versionLabel := `{"spec":{"template":{"metadata":{"labels":{"` + v1alpha1.VersionLabel + `":"x"}}}}}`
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(versionLabel))).To(unavailable)
			Expect(reload(ctx, d)).To(haveVersion(sleepVersion))
		})

		It("a stale override does not pass", func(ctx SpecContext) {
			d := blockedBefore
			stale := func(value string) string {
				return fmt.Sprintf(`{"metadata":{"labels":{%q:%s},"annotations":{%q:%s}}}`,
					v1alpha1.IgnoredSuspendLabel, value, v1alpha1.OverrideStaleAnnotation, value)
			}
			patched(ctx, d, stale(`"true"`))
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(MatchError(ContainSubstring("failed calling webhook")))
			forged := meta("annotations", v1alpha1.OverrideAnnotation, "x 1 jane")
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(`{`+forged+`,`+repair+`}`))).
				To(MatchError(ContainSubstring("failed calling webhook")))
			patched(ctx, d, stale(`null`))
		})

		It("a blocked workload takes an override release", func(ctx SpecContext) {
			got := patched(ctx, blockedBefore, `{`+meta("labels", v1alpha1.IgnoredSuspendLabel, "true")+`,`+repair+`}`)
			Expect(got.Spec.Template.Labels).To(HaveKeyWithValue("test", "1234"))
			Expect(got.Labels).To(HaveKey(v1alpha1.SuspendLabel))
		})

		It("a blocked workload opts out", func(ctx SpecContext) {
			d := patched(ctx, blockedBefore, `{`+meta("labels", v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)+`,`+another+`}`)
			Expect(d.Spec.Template.Labels).To(HaveKeyWithValue("test", "12345"))
		})
	})
})

// patchedDryRun is patched in a dry run.
func patchedDryRun(ctx context.Context, d *appsv1.Deployment, data string) *appsv1.Deployment {
	GinkgoHelper()
	result := d.DeepCopy()
	Expect(jane.Patch(ctx, result, mergePatch(data), client.DryRunAll)).To(Succeed())
	return result
}
