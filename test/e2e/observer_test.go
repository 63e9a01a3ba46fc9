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
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/observer"
)

// An observer that sees nothing finds no violation. So a client with the manager's identity does what the manager must not do.
var _ = Describe("the observer of all specs", func() {
	w := inSharedWorld()

	It("sees violations of its invariants", func(ctx SpecContext) {
		config, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig)
		Expect(err).NotTo(HaveOccurred())
		config.CertData, config.KeyData, config.CertFile, config.KeyFile = nil, nil, "", ""
		config.BearerToken = strings.TrimSpace(
			w.kubectl(ctx, "-n", controlplane.ManagerNamespace, "create", "token", "altershieldoperator-controller-manager"))
		impostor, err := client.New(config, client.Options{Scheme: w.api.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		write := func(ns, patch string) {
			GinkgoHelper()
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}}
			merge := client.RawPatch(types.MergePatchType, []byte(patch))
			Expect(impostor.Patch(ctx, d, merge, client.FieldOwner(v1alpha1.FieldManager))).To(Succeed())
		}
		expectSeen := func(want ...observer.Invariant) {
			GinkgoHelper()
			Expect(w.watcher.Settle(ctx)).To(Succeed())
			seen := map[observer.Invariant]bool{}
			violations, err := w.watcher.Violations(w.namespaces...)
			Expect(err).NotTo(HaveOccurred())
			for _, v := range violations {
				seen[v.Invariant] = true
			}
			Expect(seen).To(HaveLen(len(want)), "%v", violations)
			for _, i := range want {
				Expect(seen).To(HaveKey(i), "%v", violations)
			}
		}

		By("writing to a workload that is not defended, and to fields of users")
		outside := w.newNamespace(ctx, false)
		w.create(ctx, sleeper(outside, "web").Paused())
		expectSeen()
		write(outside, `{"spec":{"replicas":2}}`)
		expectSeen(observer.OnlyManaged, observer.OwnFields)
		write(outside, `{"spec":{"paused":false}}`)
		expectSeen(observer.OnlyManaged, observer.OwnPause)

		By("blocking without a failure")
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web"))
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		expectSeen()
		write(ns, `{"metadata":{"labels":{"`+v1alpha1.SuspendLabel+`":"1700000000"},`+
			`"annotations":{"`+v1alpha1.SuspendedByAnnotation+`":"`+change.Spec.Reversion+` 1"}}}`)
		expectSeen(observer.VerdictOnce)

		By("putting a pod into a second batch")
		batch := w.batchesOf(ctx, Default, change)[0]
		again := &v1alpha1.ChangePod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: ns, Name: change.Name + "--x--99", Labels: batch.Labels, OwnerReferences: batch.OwnerReferences,
			},
			Spec: batch.Spec,
		}
		Expect(impostor.Create(ctx, again)).To(Succeed())
		expectSeen(observer.EachPodOnce)
	})
})
