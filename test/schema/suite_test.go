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

// Package schema checks what the API server accepts of the operator's kinds.
package schema

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

var api client.Client

func TestSchema(t *testing.T) {
	if testing.Short() {
		t.Skip("needs an API server")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "schema")
}

var _ = BeforeSuite(func() {
	ctrl.SetLogger(GinkgoLogr)
	root, err := controlplane.Root(".")
	Expect(err).NotTo(HaveOccurred())
	env := &envtest.Environment{
		BinaryAssetsDirectory: controlplane.BinDir(root),
		CRDDirectoryPaths:     []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	config, err := env.Start()
	Expect(err).NotTo(HaveOccurred(), "the binaries are built by: make controlplane")
	DeferCleanup(env.Stop)
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	api, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
})

func in(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name}
}

func setting(name string, kind v1alpha1.OpsConfigType, enable bool, content string) *v1alpha1.OpsConfigInfo {
	return &v1alpha1.OpsConfigInfo{ObjectMeta: in(name), Spec: v1alpha1.OpsConfigInfoSpec{Type: kind, Enable: enable, Content: content}}
}

func release(change ...func(*v1alpha1.ChangeWorkload)) *v1alpha1.ChangeWorkload {
	c := &v1alpha1.ChangeWorkload{ObjectMeta: in("release"), Spec: v1alpha1.ChangeWorkloadSpec{
		ChangeWorkloadID: "release", Reversion: strings.Repeat("0a", 16), CountThreshold: 1, WaitTimeThreshold: 60,
	}}
	for _, f := range change {
		f(c)
	}
	return c
}

func batch(change ...func(*v1alpha1.ChangePod)) *v1alpha1.ChangePod {
	b := &v1alpha1.ChangePod{ObjectMeta: in("batch"), Spec: v1alpha1.ChangePodSpec{
		ChangeWorkloadID: "release", PodInfos: []v1alpha1.PodInfo{{Pod: "a"}}, Attempt: 1,
	}}
	for _, f := range change {
		f(b)
	}
	return b
}

// create says what the API server says of an object, without keeping it.
func create(ctx context.Context, o client.Object) error { return api.Create(ctx, o, client.DryRunAll) }

var _ = DescribeTable("objects that are accepted", func(ctx SpecContext, o client.Object) {
	Expect(create(ctx, o)).To(Succeed())
},
	Entry("blocking", setting("blocking", v1alpha1.TypeBlocking, true, "")),
	Entry("branch of 1", setting("branch", v1alpha1.TypeBranch, true, "1")),
	Entry("branch of the most", setting("branch", v1alpha1.TypeBranch, true, "200")),
	Entry("branch, disabled, with anything", setting("branch", v1alpha1.TypeBranch, false, "anything")),
	Entry("branch, disabled, with nothing", setting("branch", v1alpha1.TypeBranch, false, "")),
	Entry("rollback", setting("rollback", v1alpha1.TypeRollback, true, "1h2m3s")),
	Entry("selfhealing", setting("selfhealing", v1alpha1.TypeSelfHealing, true, "")),
	Entry("halting", setting("halting", v1alpha1.TypeHalting, true, "")),
	Entry("silence", setting("silence", v1alpha1.TypeSilence, false, "")),
	Entry("timeouts", setting("timeouts", v1alpha1.TypeTimeouts, true, "wait=60s,pre=120s,post=120s")),
	Entry("timeouts, some", setting("timeouts", v1alpha1.TypeTimeouts, true, "post=1m30s")),
	Entry("history", setting("history", v1alpha1.TypeHistory, true, "10")),
	Entry("admission", setting("admission", v1alpha1.TypeAdmission, true, "2500ms")),
	Entry("a name and a type that disagree are reported, not refused", setting("blocking", v1alpha1.TypeBranch, true, "5")),
	Entry("an unknown name is reported, not refused", setting("brunch", v1alpha1.TypeBranch, true, "5")),
	Entry("a release", release()),
	Entry("a batch", batch()),
)

var _ = DescribeTable("objects that are refused", func(ctx SpecContext, o client.Object, wants ...string) {
	err := create(ctx, o)
	Expect(err).To(HaveOccurred())
	for _, want := range wants {
		Expect(err.Error()).To(ContainSubstring(want))
	}
},
	Entry("branch of none", setting("branch", v1alpha1.TypeBranch, true, "0"), "spec.content", "from 1 to 200"),
	Entry("branch of too many", setting("branch", v1alpha1.TypeBranch, true, "201"), "spec.content", "from 1 to 200"),
	Entry("branch of a fraction", setting("branch", v1alpha1.TypeBranch, true, "1.5"), "spec.content"),
	Entry("branch of a word", setting("branch", v1alpha1.TypeBranch, true, "ten"), "spec.content"),
	Entry("branch of nothing", setting("branch", v1alpha1.TypeBranch, true, ""), "spec.content"),
	Entry("branch of a space", setting("branch", v1alpha1.TypeBranch, true, " 1"), "spec.content"),
	Entry("rollback without a unit", setting("rollback", v1alpha1.TypeRollback, true, "2"), "spec.content", `"2m"`),
	Entry("rollback after none", setting("rollback", v1alpha1.TypeRollback, true, "0s"), "spec.content"),
	Entry("timeouts unknown", setting("timeouts", v1alpha1.TypeTimeouts, true, "wiat=5s"), "spec.content", "wait=60s"),
	Entry("timeouts twice", setting("timeouts", v1alpha1.TypeTimeouts, true, "wait=5s,wait=6s"), "spec.content"),
	Entry("timeouts of none", setting("timeouts", v1alpha1.TypeTimeouts, true, "wait=0s"), "spec.content"),
	Entry("history of none", setting("history", v1alpha1.TypeHistory, true, "0"), "spec.content", "from 1 to 100"),
	Entry("admission as long as the webhook", setting("admission", v1alpha1.TypeAdmission, true, "3s"), "spec.content", "below 3s"),
	Entry("a type that is none", setting("blocking", "isBlocking", true, ""), "spec.type", "Unsupported value"),
	Entry("a remark without end", func() client.Object {
		o := setting("blocking", v1alpha1.TypeBlocking, true, "")
		o.Spec.Remark = strings.Repeat("x", 1025)
		return o
	}(), "spec.remark"),
	Entry("a version that is none", release(func(c *v1alpha1.ChangeWorkload) { c.Spec.Reversion = "v1" }), "spec.reversion"),
	Entry("batches of none", release(func(c *v1alpha1.ChangeWorkload) { c.Spec.CountThreshold = 0 }), "spec.countThreshold"),
	Entry("no wait", release(func(c *v1alpha1.ChangeWorkload) { c.Spec.WaitTimeThreshold = 0 }), "spec.waitTimeThreshold"),
	Entry("a batch of no pods", batch(func(b *v1alpha1.ChangePod) { b.Spec.PodInfos = nil }), "spec.podInfos"),
	Entry("a batch of a pod without a name", batch(func(b *v1alpha1.ChangePod) { b.Spec.PodInfos = []v1alpha1.PodInfo{{}} }), "spec.podInfos[0].pod"),
	Entry("a batch of too many", batch(func(b *v1alpha1.ChangePod) {
		b.Spec.PodInfos = make([]v1alpha1.PodInfo, settings.MaxBatchSize+1)
		for i := range b.Spec.PodInfos {
			b.Spec.PodInfos[i].Pod = "p"
		}
	}), "spec.podInfos", "200"),
)

var _ = Describe("objects that are there", func() {
	It("keep what they are about", func(ctx SpecContext) {
		c, b := release(), batch()
		c.Name, b.Name = "kept", "kept"
		Expect(api.Create(ctx, c)).To(Succeed())
		Expect(api.Create(ctx, b)).To(Succeed())
		for what, test := range map[string]struct {
			object client.Object
			patch  string
			want   string
		}{
			"version":     {c, `{"spec":{"reversion":"` + strings.Repeat("1", 32) + `"}}`, "cannot change"},
			"name":        {c, `{"spec":{"changeWorkloadId":"other"}}`, "cannot change"},
			"threshold":   {c, `{"spec":{"countThreshold":7}}`, ""},
			"pods":        {b, `{"spec":{"podInfos":[{"pod":"b"}]}}`, "cannot change"},
			"attempt":     {b, `{"spec":{"attempt":2}}`, "cannot change"},
			"annotations": {b, `{"metadata":{"annotations":{"note":"x"}}}`, ""},
		} {
			object, ok := test.object.DeepCopyObject().(client.Object)
			Expect(ok).To(BeTrue())
			err := api.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(test.patch)))
			if test.want == "" {
				Expect(err).NotTo(HaveOccurred(), what)
				continue
			}
			Expect(err).To(MatchError(ContainSubstring(test.want)), what)
		}
	})

	It("have a status of their own, with states that are known", func(ctx SpecContext) {
		c := release()
		c.Name = "status"
		c.Status.Status = v1alpha1.ChangeWorkloadSuccess
		Expect(api.Create(ctx, c)).To(Succeed())
		Expect(c.Status.Status).To(BeEmpty(), "a create writes no status")
		for _, state := range []v1alpha1.ChangeWorkloadStatusType{"Running", "TimeOutPreThreshold", "Success", "Suspend", "Failed", "Rollback", "Canceled"} {
			c.Status.Status = state
			Expect(api.Status().Update(ctx, c)).To(Succeed(), string(state))
		}
		c.Status.Status = "Fine"
		Expect(api.Status().Update(ctx, c)).To(MatchError(ContainSubstring("Unsupported value")))

		b := batch()
		b.Name = "status"
		Expect(api.Create(ctx, b)).To(Succeed())
		for _, state := range []v1alpha1.ChangePodStatusType{"PreWait", "PreSubmitted", "PreFailed", "PreTimeout", "PostWait", "PostSubmitted", "PostFailed", "PostTimeout", "PostFinish", "ExecuteDone"} {
			b.Status.Status = state
			Expect(api.Status().Update(ctx, b)).To(Succeed(), string(state))
		}
		b.Status.Status = "Done"
		Expect(api.Status().Update(ctx, b)).To(MatchError(ContainSubstring("Unsupported value")))
	})

	It("hold a full batch in 256 KiB", func(ctx SpecContext) {
		b := batch(func(b *v1alpha1.ChangePod) {
			b.Name = "full"
			b.Spec.PodInfos = nil
			for range settings.MaxBatchSize {
				b.Spec.PodInfos = append(b.Spec.PodInfos, v1alpha1.PodInfo{
					App: strings.Repeat("a", 63), HostName: strings.Repeat("h", 63), Pod: strings.Repeat("p", 63), Namespace: strings.Repeat("n", 63),
					WorkSpace: strings.Repeat("n", 63), IP: "fd00:1111:2222:3333:4444:5555:6666:7777", UID: "00000000-0000-0000-0000-000000000000",
				})
			}
		})
		Expect(api.Create(ctx, b)).To(Succeed())
		for _, p := range b.Spec.PodInfos {
			b.Status.PodResults = append(b.Status.PodResults, v1alpha1.PodResult{PodInfo: p, Verdict: "pass"})
		}
		Expect(api.Status().Update(ctx, b)).To(Succeed())
		data, err := json.Marshal(b)
		Expect(err).NotTo(HaveOccurred())
		Expect(len(data)).To(BeNumerically("<", 256<<10))
	})
})
