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

// Package schema checks which objects of the operator's kinds the API server accepts.
package schema

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/wrappers"
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
	DeferCleanup(env.Stop)
	config, err := env.Start()
	Expect(err).NotTo(HaveOccurred(), "the binaries are built by: make controlplane")
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(apiextensionsv1.AddToScheme(scheme))
	utilruntime.Must(admissionregistrationv1.AddToScheme(scheme))
	config.QPS = -1
	api, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
})

func setting(name string, kind v1alpha1.OpsConfigType) *wrappers.OpsConfigInfoWrapper {
	return wrappers.MakeOpsConfigInfo("default", name, kind)
}

func release(name string) *wrappers.ChangeWorkloadWrapper {
	return wrappers.MakeChangeWorkload("default", name)
}

func batch(name string) *wrappers.ChangePodWrapper {
	return wrappers.MakeChangePod("default", name).Of(release("release").UID("release").Obj())
}

// create has the API server check an object, without storing it.
func create(ctx context.Context, o client.Object) error { return api.Create(ctx, o, client.DryRunAll) }

var _ = DescribeTable("objects that are accepted", func(ctx SpecContext, o client.Object) {
	Expect(create(ctx, o)).To(Succeed())
},
	Entry("blocking", setting("blocking", v1alpha1.TypeBlocking).On("").Obj()),
	Entry("branch of 1", setting("branch", v1alpha1.TypeBranch).On("1").Obj()),
	Entry("branch of the maximum", setting("branch", v1alpha1.TypeBranch).On("200").Obj()),
	Entry("branch, disabled, with anything", setting("branch", v1alpha1.TypeBranch).Off("anything").Obj()),
	Entry("branch, disabled, with nothing", setting("branch", v1alpha1.TypeBranch).Off("").Obj()),
	Entry("rollback", setting("rollback", v1alpha1.TypeRollback).On("1h2m3s").Obj()),
	Entry("rollback with parts", setting("rollback", v1alpha1.TypeRollback).On("after=2m,slow=10m,tolerate=10%").Obj()),
	Entry("rollback with all parts", setting("rollback", v1alpha1.TypeRollback).On("proven=1h,after=2m,slow=10m,tolerate=10%").Obj()),
	Entry("rollback never after success", setting("rollback", v1alpha1.TypeRollback).On("after=2m,proven=0").Obj()),
	Entry("rollback with a part", setting("rollback", v1alpha1.TypeRollback).On("slow=1h30m").Obj()),
	Entry("rollback that tolerates none", setting("rollback", v1alpha1.TypeRollback).On("tolerate=0").Obj()),
	Entry("rollback that tolerates none, in percent", setting("rollback", v1alpha1.TypeRollback).On("tolerate=0%,after=1s").Obj()),
	Entry("rollback that tolerates all", setting("rollback", v1alpha1.TypeRollback).On("tolerate=100%").Obj()),
	Entry("selfhealing", setting("selfhealing", v1alpha1.TypeSelfHealing).On("").Obj()),
	Entry("halting", setting("halting", v1alpha1.TypeHalting).On("").Obj()),
	Entry("silence", setting("silence", v1alpha1.TypeSilence).Off("").Obj()),
	Entry("timeouts", setting("timeouts", v1alpha1.TypeTimeouts).On("wait=60s,pre=120s,post=120s").Obj()),
	Entry("timeouts, some", setting("timeouts", v1alpha1.TypeTimeouts).On("post=1m30s").Obj()),
	Entry("timeouts, all", setting("timeouts", v1alpha1.TypeTimeouts).On("wait=60s,pre=120s,post=120s,settle=10s").Obj()),
	Entry("timeouts without settling", setting("timeouts", v1alpha1.TypeTimeouts).On("settle=0").Obj()),
	Entry("timeouts without settling, with a unit", setting("timeouts", v1alpha1.TypeTimeouts).On("settle=0s,wait=5s").Obj()),
	Entry("observe", setting("observe", v1alpha1.TypeObserve).On("").Obj()),
	Entry("quarantine", setting("quarantine", v1alpha1.TypeQuarantine).On("1h").Obj()),
	Entry("quarantine of a day", setting("quarantine", v1alpha1.TypeQuarantine).On("24h").Obj()),
	Entry("quarantine, disabled", setting("quarantine", v1alpha1.TypeQuarantine).Off("").Obj()),
	Entry("eviction", setting("eviction", v1alpha1.TypeEviction).On("").Obj()),
	Entry("eviction, disabled", setting("eviction", v1alpha1.TypeEviction).Off("").Obj()),
	Entry("limit", setting("limit", v1alpha1.TypeLimit).On("5/10m").Obj()),
	Entry("limit of the maximum", setting("limit", v1alpha1.TypeLimit).On("1000/24h").Obj()),
	Entry("holding the first", setting("holding", v1alpha1.TypeHolding).On("first").Obj()),
	Entry("holding every, shortly", setting("holding", v1alpha1.TypeHolding).On("every,atMost=1m").Obj()),
	Entry("holding of DaemonSets", setting("holding", v1alpha1.TypeHolding).On("first,daemonsets").Obj()),
	Entry("holding of DaemonSets, shortly", setting("holding", v1alpha1.TypeHolding).On("every,daemonsets,atMost=1m").Obj()),
	Entry("holding every, long", setting("holding", v1alpha1.TypeHolding).On("every,atMost=1h59m60s").Obj()),
	Entry("holding, disabled", setting("holding", v1alpha1.TypeHolding).Off("later").Obj()),
	Entry("history", setting("history", v1alpha1.TypeHistory).On("10").Obj()),
	Entry("admission", setting("admission", v1alpha1.TypeAdmission).On("2500ms").Obj()),
	Entry("a name and a type that disagree are reported, not refused", setting("blocking", v1alpha1.TypeBranch).On("5").Obj()),
	Entry("an unknown name is reported, not refused", setting("brunch", v1alpha1.TypeBranch).On("5").Obj()),
	Entry("a release", release("release").Obj()),
	Entry("a batch", batch("batch").Pods("a").Obj()),
)

var _ = DescribeTable("objects that are refused", func(ctx SpecContext, o client.Object, wants ...string) {
	err := create(ctx, o)
	Expect(err).To(HaveOccurred())
	for _, want := range wants {
		Expect(err.Error()).To(ContainSubstring(want))
	}
},
	Entry("branch of none", setting("branch", v1alpha1.TypeBranch).On("0").Obj(), "spec.content", "from 1 to 200"),
	Entry("branch of too many", setting("branch", v1alpha1.TypeBranch).On("201").Obj(), "spec.content", "from 1 to 200"),
	Entry("branch of a fraction", setting("branch", v1alpha1.TypeBranch).On("1.5").Obj(), "spec.content"),
	Entry("branch of a word", setting("branch", v1alpha1.TypeBranch).On("ten").Obj(), "spec.content"),
	Entry("branch of nothing", setting("branch", v1alpha1.TypeBranch).On("").Obj(), "spec.content"),
	Entry("branch of a space", setting("branch", v1alpha1.TypeBranch).On(" 1").Obj(), "spec.content"),
	Entry("rollback without a unit", setting("rollback", v1alpha1.TypeRollback).On("2").Obj(), "spec.content", `"2m"`),
	Entry("rollback proven too late", setting("rollback", v1alpha1.TypeRollback).On("proven=61m,after=2m").Obj(), "spec.content", "1h"),
	Entry("rollback proven twice", setting("rollback", v1alpha1.TypeRollback).On("proven=1m,proven=2m").Obj(), "spec.content"),
	Entry("rollback after none", setting("rollback", v1alpha1.TypeRollback).On("0s").Obj(), "spec.content"),
	Entry("rollback of parts without a unit", setting("rollback", v1alpha1.TypeRollback).On("after=2m,slow=10").Obj(), "spec.content", `"2m"`),
	Entry("rollback slow after none", setting("rollback", v1alpha1.TypeRollback).On("slow=0").Obj(), "spec.content"),
	Entry("rollback that tolerates a number", setting("rollback", v1alpha1.TypeRollback).On("tolerate=10").Obj(), "spec.content",
		"tolerate=10%"),
	Entry("rollback that tolerates too many", setting("rollback", v1alpha1.TypeRollback).On("tolerate=101%").Obj(), "spec.content"),
	Entry("rollback with a part twice", setting("rollback", v1alpha1.TypeRollback).On("after=2m,after=3m").Obj(), "spec.content"),
	Entry("rollback with both", setting("rollback", v1alpha1.TypeRollback).On("2m,slow=3m").Obj(), "spec.content"),
	Entry("timeouts that settle without a unit", setting("timeouts", v1alpha1.TypeTimeouts).On("settle=10").Obj(), "spec.content",
		"settle=10s"),
	Entry("timeouts that settle twice", setting("timeouts", v1alpha1.TypeTimeouts).On("settle=0,settle=10s").Obj(), "spec.content"),
	Entry("quarantine of nothing", setting("quarantine", v1alpha1.TypeQuarantine).On("").Obj(), "spec.content", "24h"),
	Entry("quarantine of more than a day", setting("quarantine", v1alpha1.TypeQuarantine).On("25h").Obj(), "spec.content", "24h"),
	Entry("quarantine without a unit", setting("quarantine", v1alpha1.TypeQuarantine).On("1").Obj(), "spec.content", `"1h"`),
	Entry("limit of none", setting("limit", v1alpha1.TypeLimit).On("0/10m").Obj(), "spec.content", `"5/10m"`),
	Entry("limit of too many", setting("limit", v1alpha1.TypeLimit).On("1001/10m").Obj(), "spec.content"),
	Entry("limit without a time", setting("limit", v1alpha1.TypeLimit).On("5").Obj(), "spec.content", `"5/10m"`),
	Entry("limit of two days", setting("limit", v1alpha1.TypeLimit).On("5/48h").Obj(), "spec.content", "24h"),
	Entry("holding for nothing", setting("holding", v1alpha1.TypeHolding).On("").Obj(), "spec.content", `"first,daemonsets,atMost=30m"`),
	Entry("holding the second", setting("holding", v1alpha1.TypeHolding).On("second").Obj(), "spec.content", "first or every"),
	Entry("holding too shortly", setting("holding", v1alpha1.TypeHolding).On("first,atMost=59s").Obj(), "spec.content", "from 1m to 2h"),
	Entry("holding too long", setting("holding", v1alpha1.TypeHolding).On("every,atMost=2h1s").Obj(), "spec.content", "from 1m to 2h"),
	Entry("holding of StatefulSets", setting("holding", v1alpha1.TypeHolding).On("first,statefulsets").Obj(), "spec.content"),
	Entry("holding without a unit", setting("holding", v1alpha1.TypeHolding).On("first,atMost=30").Obj(), "spec.content"),
	Entry("holding twice", setting("holding", v1alpha1.TypeHolding).On("first,atMost=5m,atMost=6m").Obj(), "spec.content"),
	Entry("timeouts unknown", setting("timeouts", v1alpha1.TypeTimeouts).On("wiat=5s").Obj(), "spec.content", "wait=60s"),
	Entry("timeouts twice", setting("timeouts", v1alpha1.TypeTimeouts).On("wait=5s,wait=6s").Obj(), "spec.content"),
	Entry("timeouts of none", setting("timeouts", v1alpha1.TypeTimeouts).On("wait=0s").Obj(), "spec.content"),
	Entry("history of none", setting("history", v1alpha1.TypeHistory).On("0").Obj(), "spec.content", "from 1 to 100"),
	Entry("admission as long as the webhook", setting("admission", v1alpha1.TypeAdmission).On("3s").Obj(), "spec.content", "100ms to 2900ms"),
	Entry("admission without time to answer", setting("admission", v1alpha1.TypeAdmission).On("50ms").Obj(),
		"spec.content", "100ms to 2900ms"),
	Entry("a type that is none", setting("blocking", "isBlocking").On("").Obj(), "spec.type", "Unsupported value"),
	Entry("a remark without end", setting("blocking", v1alpha1.TypeBlocking).
		With(func(o *v1alpha1.OpsConfigInfo) { o.Spec.Remark = strings.Repeat("x", 1025) }).Obj(), "spec.remark"),
	Entry("a version that is none", release("release").Version("v1").Obj(), "spec.reversion"),
	Entry("batches of none", release("release").With(func(c *v1alpha1.ChangeWorkload) { c.Spec.CountThreshold = 0 }).Obj(),
		"spec.countThreshold"),
	Entry("no wait", release("release").With(func(c *v1alpha1.ChangeWorkload) { c.Spec.WaitTimeThreshold = 0 }).Obj(),
		"spec.waitTimeThreshold"),
	Entry("a batch of no pods", batch("batch").Obj(), "spec.podInfos"),
	Entry("a batch of a pod without a name", batch("batch").Pods("").Obj(), "spec.podInfos[0].pod"),
	Entry("a batch of too many", batch("batch").Pods(slices.Repeat([]string{"p"}, settings.MaxBatchSize+1)...).Obj(), "spec.podInfos", "200"),
)

var _ = Describe("stored objects", func() {
	It("keep their workload and their version", func(ctx SpecContext) {
		d := wrappers.MakeDeployment("default", "sleep").UID("u").Obj()
		c, earlier := release("kept").Of(d).Obj(), release("earlier").Obj()
		b, earlierBatch := batch("kept").Pods("a").Obj(), batch("earlier").Pods("a").Obj()
		b.Spec.WorkloadRef = c.Spec.WorkloadRef
		for _, o := range []client.Object{c, earlier, b, earlierBatch} {
			Expect(api.Create(ctx, o)).To(Succeed())
		}
		ref := func(workload string) string { return `{"spec":{"workloadRef":` + workload + `}}` }
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

			"a workload, if none was named":        {earlier, ref(`{"apiVersion":"apps/v1","kind":"Deployment","name":"sleep","uid":"u"}`), ""},
			"the same workload":                    {c, ref(`{"apiVersion":"apps/v1","kind":"Deployment","name":"sleep","uid":"u"}`), ""},
			"another kind of workload":             {c, ref(`{"kind":"StatefulSet"}`), "cannot change"},
			"another workload of its name":         {c, ref(`{"uid":"v"}`), "cannot change"},
			"no workload":                          {c, ref(`null`), "cannot change"},
			"another kind of workload for a batch": {b, ref(`{"kind":"StatefulSet"}`), "cannot change"},
			"a workload for a batch without one": {
				earlierBatch, ref(`{"apiVersion":"apps/v1","kind":"Deployment","name":"sleep","uid":"u"}`), "cannot change",
			},
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

	It("have a status subresource, with known states", func(ctx SpecContext) {
		c := release("status").State(v1alpha1.ChangeWorkloadSuccess).Obj()
		Expect(api.Create(ctx, c)).To(Succeed())
		Expect(c.Status.Status).To(BeEmpty(), "a create writes no status")
		for _, state := range []v1alpha1.ChangeWorkloadStatusType{
			"Running", "TimeOutPreThreshold", "Success", "Suspend", "Failed", "Rollback", "Canceled",
		} {
			c.Status.Status = state
			Expect(api.Status().Update(ctx, c)).To(Succeed(), string(state))
		}
		c.Status.Status = "Fine"
		Expect(api.Status().Update(ctx, c)).To(MatchError(ContainSubstring("Unsupported value")))

		b := batch("status").Pods("a").Obj()
		Expect(api.Create(ctx, b)).To(Succeed())
		for _, state := range []v1alpha1.ChangePodStatusType{
			"PreWait", "PreSubmitted", "PreFailed", "PreTimeout", "PostWait", "PostSubmitted", "PostFailed", "PostTimeout",
			"PostFinish", "ExecuteDone",
		} {
			b.Status.Status = state
			Expect(api.Status().Update(ctx, b)).To(Succeed(), string(state))
		}
		b.Status.Status = "Done"
		Expect(api.Status().Update(ctx, b)).To(MatchError(ContainSubstring("Unsupported value")))
	})

	It("hold a full batch in 256 KiB", func(ctx SpecContext) {
		b := batch("full").Obj()
		b.Spec.PodInfos = slices.Repeat([]v1alpha1.PodInfo{{
			App: strings.Repeat("a", 63), HostName: strings.Repeat("h", 63), Pod: strings.Repeat("p", 63), Namespace: strings.Repeat("n", 63),
			WorkSpace: strings.Repeat("n", 63), IP: "fd00:1111:2222:3333:4444:5555:6666:7777", UID: "00000000-0000-0000-0000-000000000000",
		}}, settings.MaxBatchSize)
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
