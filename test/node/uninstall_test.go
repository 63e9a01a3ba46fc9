//go:build linux

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

package node

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/nodes"
	"github.com/traas-stack/altershield-operator/internal/errand"
)

// chart lets the Helm chart adopt the operator that kubectl installed, and uninstalls it, with the Jobs of its hooks in real pods. It runs
// last: it removes the operator.
func chart() {
	var ns string
	release := func(name string, spec func(*appsv1.Deployment)) {
		GinkgoHelper()
		d := plain(ns, name, 6).MinReadySeconds(15).Obj()
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
			MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0)),
		}
		spec(d)
		Expect(api.Create(context.Background(), d)).To(Succeed())
	}

	It("is adopted by the chart, which applies settings", func(ctx SpecContext) {
		helm(ctx, "install", "altershield", filepath.Join(root, "charts", "altershield-operator"),
			"--take-ownership", "--force-conflicts", "--wait", "--set", "settings.branch.content=1,crds.keep=false")
		branch := kubectl(ctx, "-n", operatorNamespace, "get", "opsconfiginfo", "branch", "-o", "jsonpath={.spec.enable} {.spec.content}")
		Expect(branch).To(Equal("true 1"))
		installed(ctx)
	}, SpecTimeout(5*time.Minute))

	It("takes back a block and a pause before Helm uninstalls it, and leaves nothing", func(ctx SpecContext) {
		ns = newNamespace(ctx, "leaving")
		release("blocked", func(*appsv1.Deployment) {})
		release("halted", func(d *appsv1.Deployment) {
			d.Annotations = map[string]string{"altershield.defense.antgroup.com/observe": "disabled"}
		})
		fail(ctx, eventuallyState(ctx, ns, "blocked", v1alpha1.ChangeWorkloadSuccess))
		eventuallyState(ctx, ns, "halted", v1alpha1.ChangeWorkloadSuccess)
		kubectl(ctx, "-n", ns, "patch", "deployment", "halted", "-p", `{"spec":{"template":{"metadata":{"labels":{"v":"2"}}}}}`)
		Eventually(func(g Gomega) { fail(ctx, current(ctx, g, ns, "halted")) }).WithContext(ctx).Should(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(getDeployment(ctx, g, ns, "blocked").Labels).To(HaveKey(v1alpha1.SuspendLabel))
			halted := getDeployment(ctx, g, ns, "halted")
			g.Expect(halted.Annotations).To(HaveKey(v1alpha1.HaltedAnnotation))
			g.Expect(halted.Spec.Paused).To(BeTrue())
		}).WithContext(ctx).Should(Succeed())

		refused, err := tryHelm(ctx, "uninstall", "altershield")
		Expect(err).To(HaveOccurred(), "the halted rollout would go on to the version that failed")
		Expect(refused).To(And(
			ContainSubstring("Deployment "+ns+"/blocked: [blocked]"), ContainSubstring("Deployment "+ns+"/halted: [blocked paused]"),
			ContainSubstring("nothing was changed"),
		), "Helm shows the log of the Job")
		Expect(getDeployment(ctx, Default, ns, "halted").Spec.Paused).To(BeTrue())
		kubectl(ctx, "-n", operatorNamespace, "annotate", operator, errand.ForceAnnotation+"=true")
		Expect(helm(ctx, "uninstall", "altershield")).To(
			ContainSubstring("no workload is blocked, paused or held by the operator"), "Helm shows the log of the Job")
		for _, name := range []string{"blocked", "halted"} {
			d := getDeployment(ctx, Default, ns, name)
			Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
			Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
			Expect(d.Spec.Paused).To(BeFalse())
			// The manager's pods may still be terminating, but no webhook is called.
			kubectl(ctx, "-n", ns, "patch", "deployment", name, "-p", `{"spec":{"template":{"metadata":{"labels":{"v":"3"}}}}}`)
		}
		// The token of a server is the user's, and stays.
		kubectl(ctx, "-n", operatorNamespace, "delete", "secret", "altershield-token", "--ignore-not-found")
		Eventually(func() []string {
			const (
				everywhere = "crds,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations"
				own        = "all,secrets,configmaps,leases,roles,rolebindings,serviceaccounts,resourcequotas,poddisruptionbudgets"
			)
			all := kubectl(ctx, "get", everywhere, "-o", "name") + kubectl(ctx, "-n", operatorNamespace, "get", own, "-o", "name")
			return slices.DeleteFunc(strings.Fields(all), func(name string) bool {
				return !strings.Contains(name, "altershield") && !strings.Contains(name, "alipay")
			})
		}).WithContext(ctx).Should(BeEmpty())
	}, SpecTimeout(10*time.Minute))
}

// fromClone installs the operator from a clone by the commands of docs/getting-started/install.md: it builds the image, brings its archive
// to each node, and installs the packaged chart. There is no operator before.
func fromClone() {
	It("is installed from a clone as the page says, and verifies a release", func(ctx SpecContext) {
		page, err := os.ReadFile(filepath.Join(root, "docs", "getting-started", "install.md"))
		Expect(err).NotTo(HaveOccurred())
		typed := func(pattern string) string {
			GinkgoHelper()
			found := regexp.MustCompile(pattern).FindString(string(page))
			Expect(found).NotTo(BeEmpty(), "the page has no command %s", pattern)
			return found
		}
		build := exec.CommandContext(ctx, "bash", "-c", typed(`make image release-manifests .*`))
		build.Dir = root
		build.Env = append(os.Environ(), "PLATFORMS=linux/"+goruntime.GOARCH)
		_, err = output(build)
		Expect(err).NotTo(HaveOccurred())

		dist := filepath.Join(root, "dist")
		load := strings.Fields(typed(`ctr -n k8s\.io images import [^\s\x60]+`))
		load[len(load)-1] = filepath.Join(dist, load[len(load)-1])
		for _, node := range nodes.Nodes() {
			_, err := output(cluster.On(ctx, node, load...))
			Expect(err).NotTo(HaveOccurred())
		}
		version := strings.TrimPrefix(typed(`VERSION=v[^\s]+`), "VERSION=v")
		install := strings.Fields(strings.TrimPrefix(typed(`helm install altershield altershield-operator-<version>\.tgz .*`), "helm "))
		install[2] = filepath.Join(dist, "altershield-operator-"+version+".tgz")
		helm(ctx, append(install, "--wait")...)

		Eventually(func() error {
			check := cluster.Kubectl(ctx, "check")
			program := slices.IndexFunc(check.Args, func(a string) bool { return filepath.Base(a) == "kubectl" })
			check.Args[program] = filepath.Join(root, "bin", "kubectl-altershield")
			_, err := output(check)
			return err
		}).WithContext(ctx).Should(Succeed())
		ns := newNamespace(ctx, "cloned")
		Expect(api.Create(ctx, plain(ns, "first", 1).Obj())).To(Succeed())
		eventuallyState(ctx, ns, "first", v1alpha1.ChangeWorkloadSuccess)
	}, SpecTimeout(12*time.Minute))
}

// fail writes a failing verdict on the first pod of a release. It waits for a batch.
func fail(ctx context.Context, change *v1alpha1.ChangeWorkload) {
	GinkgoHelper()
	var batches v1alpha1.ChangePodList
	Eventually(func(g Gomega) {
		g.Expect(api.List(ctx, &batches, client.InNamespace(change.Namespace))).To(Succeed())
		batches.Items = slices.DeleteFunc(batches.Items, func(b v1alpha1.ChangePod) bool {
			return b.Spec.ChangeWorkloadID != change.Name || b.Status.Status != v1alpha1.ChangePodExecuteDone
		})
		g.Expect(batches.Items).NotTo(BeEmpty())
	}).WithContext(ctx).Should(Succeed())
	info := batches.Items[0].Spec.PodInfos[0]
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"message": "PostFinish", "podResults": []any{map[string]any{
		"app": info.App, "hostName": info.HostName, "workSpace": info.WorkSpace, "pod": info.Pod, "ip": info.IP,
		"namespace": info.Namespace, "verdict": "unpass", "message": "find error",
	}}}})
	Expect(err).NotTo(HaveOccurred())
	kubectl(ctx, "-n", change.Namespace, "patch", "changepod", "--subresource=status", batches.Items[0].Name,
		"--type=merge", "-p", string(patch))
}

// helm runs the real Helm, which make test-node builds, where kubectl runs.
func helm(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := tryHelm(ctx, args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

func tryHelm(ctx context.Context, args ...string) (string, error) {
	GinkgoHelper()
	home := GinkgoT().TempDir()
	cmd := cluster.Kubectl(ctx, append(args, "--namespace", operatorNamespace)...)
	program := slices.IndexFunc(cmd.Args, func(a string) bool { return filepath.Base(a) == "kubectl" })
	Expect(program).To(BeNumerically(">", 0))
	cmd.Args[program] = filepath.Join(root, "bin", "helm")
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	return output(cmd)
}
