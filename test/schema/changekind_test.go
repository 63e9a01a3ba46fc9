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

package schema

import (
	"encoding/json"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// kindOf returns a ChangeKind with this name and spec.
func kindOf(name, spec string) *unstructured.Unstructured {
	if !strings.Contains(spec, "version: ") {
		spec = "version: v1\n" + spec
	}
	k := policyOf(name, spec)
	k.SetKind("ChangeKind")
	k.SetNamespace("")
	return k
}

const (
	cloneSets = "clonesets.apps.kruise.io"
	template  = "content: [{path: spec.template, podTemplate: true}]\n"
	pods      = "pods: {current: 'true'}\n"
)

// everyKind has, in ChangeKinds that are accepted, every field of the spec.
var everyKind = []string{
	"enrolment: Label\ncontent: [{path: spec.template, podTemplate: true, ignore: [metadata.annotations, spec.schedulerName]}]\n" +
		"versionLabel: Template\nreplicas: spec.replicas\n" +
		"pods: {find: Owner, through: [{apiVersion: apps/v1, kind: ReplicaSet}], current: 'pod.metadata.name == revision.name', " +
		"inPlace: true}\n" +
		"rollout: {complete: 'object.status.ready == true', stuck: string(object.status.message), minReadySeconds: spec.minReadySeconds, " +
		"deadline: 10m, settle: 5s, partition: spec.partition, halt: [{path: spec.paused, value: true}]}\n" +
		"hold: Partition\nrollback: Automatic\nadmission: Observe",
	template + "replicas: spec.replicas\npods: {find: Selector, selector: status.selector, current: 'true'}",
	template + "pods: {find: Selector, labels: {app: string(object.metadata.name)}, current: 'true'}\n" +
		"rollout: {complete: 'object.status.ready == true'}",
}

// problemOf returns the problem of a ChangeKind that the API server accepted.
func problemOf(o *unstructured.Unstructured) string {
	typed := &v1alpha1.ChangeKind{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed); err != nil {
		return "cannot be read: " + err.Error()
	}
	_, problem := declared.Accept(typed, declared.Served{Kind: "CloneSet", Namespaced: true, Selector: ".status.labelSelector"})
	return problem
}

var _ = DescribeTable("ChangeKinds that are accepted", func(ctx SpecContext, name, spec string) {
	k := kindOf(name, spec)
	Expect(api.Create(ctx, k, client.DryRunAll)).To(Succeed())
	Expect(problemOf(k)).To(BeEmpty())
},
	Entry("the least", "virtualservices.networking.istio.io", ""),
	Entry("a kind of the core group", "configmaps", "enrolment: Label\ncontent: [{path: data}, {path: binaryData}]"),
	Entry("a kind of the operator's domain", "things.ops.cloud.alipay.com", ""),
	Entry("all", cloneSets, everyKind[0]),
	Entry("a selector", cloneSets, everyKind[1]),
	Entry("labels", cloneSets, everyKind[2]),
	Entry("paths that begin alike", cloneSets, "content: [{path: spec.template}, {path: spec.templates}]"),
)

var _ = DescribeTable("ChangeKinds that are refused", func(ctx SpecContext, name, spec string, wants ...string) {
	err := api.Create(ctx, kindOf(name, spec), client.DryRunAll)
	Expect(err).To(HaveOccurred())
	for _, want := range wants {
		Expect(err.Error()).To(ContainSubstring(want))
	}
},
	Entry("a name that is no resource", "9sets.apps.kruise.io", "", "metadata.name", "{plural}.{group}"),
	Entry("a long plural", strings.Repeat("a", 64)+".example.com", "", "metadata.name", "{plural}.{group}"),
	Entry("Deployments", "deployments.apps", "", "metadata.name", "remove the ChangeKind"),
	Entry("StatefulSets", "statefulsets.apps", "", "metadata.name", "remove the ChangeKind"),
	Entry("DaemonSets", "daemonsets.apps", "", "metadata.name", "remove the ChangeKind"),
	Entry("Secrets", "secrets", "enrolment: Label", "metadata.name", "refers to the Secret"),
	Entry("Jobs", "jobs.batch", "", "metadata.name", "cronjobs.batch"),
	Entry("JobSets", "jobsets.jobset.x-k8s.io", "", "metadata.name", "cronjobs.batch"),
	Entry("Pods", "pods", "enrolment: Label", "metadata.name", "declare the kind that users change"),
	Entry("ReplicaSets", "replicasets.apps", "", "metadata.name", "declare the kind that users change"),
	Entry("ControllerRevisions", "controllerrevisions.apps", "", "metadata.name", "declare the kind that users change"),
	Entry("Events", "events", "enrolment: Label", "metadata.name", "declare the kind that users change"),
	Entry("Events of their own group", "events.events.k8s.io", "", "metadata.name", "declare the kind that users change"),
	Entry("Leases", "leases.coordination.k8s.io", "", "metadata.name", "declare the kind that users change"),
	Entry("a kind of the operator", "changeworkloads.app.ops.cloud.alipay.com", "", "metadata.name", "another kind"),
	Entry("the core group without labels", "configmaps", "", "spec.enrolment", "to Label"),
	Entry("a version that is none", cloneSets, "version: 1", "spec.version"),
	Entry("no content", cloneSets, "content: []", "spec.content"),
	Entry("much content", cloneSets, "content: [{path: a}, {path: b}, {path: c}, {path: d}, {path: e}, {path: f}, {path: g}, {path: h}, "+
		"{path: i}]", "spec.content", "Too many"),
	Entry("content twice", cloneSets, "content: [{path: spec}, {path: spec}]", "spec.content[1]", "Duplicate"),
	Entry("content within content", cloneSets, "content: [{path: spec.a}, {path: spec.a.b}]", "spec.content", "remove the path"),
	Entry("an entry of a list as content", cloneSets, "content: [{path: 'spec.http[0]'}]", "spec.content[0].path"),
	Entry("a pointer as content", cloneSets, "content: [{path: /spec/template}]", "spec.content[0].path"),
	Entry("a long path", cloneSets, "content: [{path: "+strings.Repeat("a", 257)+"}]", "spec.content[0].path", "Too long"),
	Entry("labels as content", cloneSets, "content: [{path: metadata.labels}]", "spec.content[0].path", "outside of metadata and status"),
	Entry("the status as content", cloneSets, "content: [{path: status}]", "spec.content[0].path", "outside of metadata and status"),
	Entry("an ignored entry of a list", cloneSets, "content: [{path: spec, ignore: ['a[0]']}]", "spec.content[0].ignore[0]"),
	Entry("a version label on no template", cloneSets, "versionLabel: Template", "spec.versionLabel", "exactly one pod template"),
	Entry("a version label on two templates", cloneSets,
		"versionLabel: Template\ncontent: [{path: spec.a, podTemplate: true}, {path: spec.b, podTemplate: true}]",
		"spec.versionLabel", "exactly one pod template"),
	Entry("a hold without a partition", cloneSets, template+pods+"hold: Partition", "spec.hold", "rollout.partition"),
	Entry("a hold of an unknown number of pods", cloneSets,
		template+pods+"rollout: {complete: 'true', partition: spec.partition}\nhold: Partition",
		"spec.hold", "set pods, replicas"),
	Entry("an unknown number of pods", cloneSets, template+pods, "spec.replicas", "or rollout.complete"),
	Entry("a path of 9 fields", cloneSets, "content: [{path: a"+strings.Repeat(".a", 8)+"}]", "spec.content[0].path"),
	Entry("a hold without pods", cloneSets, template+"rollout: {partition: spec.partition}\nhold: Partition", "spec.hold", "set pods"),
	Entry("a hold that is none", cloneSets, "hold: Always", "spec.hold", "Unsupported value"),
	Entry("pods of any content", cloneSets, "pods: {find: Owner}", "spec.pods.current"),
	Entry("an empty expression", cloneSets, "pods: {current: ''}", "spec.pods.current"),
	Entry("a long expression", cloneSets, "pods: {current: '"+strings.Repeat("a", 4097)+"'}", "spec.pods.current", "Too long"),
	Entry("a selector of an owner", cloneSets, "pods: {current: 'true', selector: spec.selector}", "spec.pods.find", "set find to Selector"),
	Entry("labels of an owner", cloneSets, "pods: {current: 'true', labels: {a: b}}", "spec.pods.find", "set find to Selector"),
	Entry("a selector and labels", cloneSets, "pods: {find: Selector, current: 'true', selector: spec.selector, labels: {a: b}}",
		"spec.pods.labels", "one of the two"),
	Entry("no labels", cloneSets, "pods: {find: Selector, current: 'true', labels: {}}", "spec.pods.labels"),
	Entry("objects between a selector and its pods", cloneSets,
		"pods: {find: Selector, current: 'true', through: [{apiVersion: apps/v1, kind: ReplicaSet}]}", "spec.pods.through", "find to Owner"),
	Entry("a long way", cloneSets, "pods: {current: 'true', through: [{apiVersion: v1, kind: A}, {apiVersion: v1, kind: B}, "+
		"{apiVersion: v1, kind: C}, {apiVersion: v1, kind: D}, {apiVersion: v1, kind: E}]}", "spec.pods.through", "Too many"),
	Entry("a short deadline", cloneSets, "rollout: {deadline: 59s}", "spec.rollout.deadline", "from 1m to 24h"),
	Entry("a long time to settle", cloneSets, "rollout: {settle: 2h}", "spec.rollout.settle", "from 0s to 1h"),
	Entry("a partition in the status", cloneSets, "rollout: {partition: status.partition}", "spec.rollout.partition", "the operator writes"),
	Entry("a halt in the metadata", cloneSets, "rollout: {halt: [{path: metadata.finalizers, value: a}]}",
		"spec.rollout.halt[0].path", "the operator writes"),
	Entry("a halt without a value", cloneSets, "rollout: {halt: [{path: spec.paused}]}", "spec.rollout.halt[0].value"),
	Entry("a halt twice", cloneSets, "rollout: {halt: [{path: spec.a, value: 1}, {path: spec.a, value: 2}]}",
		"spec.rollout.halt[1]", "Duplicate"),
	Entry("a fifth halt", cloneSets, "rollout: {halt: [{path: a, value: 1}, {path: b, value: 1}, {path: c, value: 1}, {path: d, value: 1}, "+
		"{path: e, value: 1}]}", "spec.rollout.halt", "Too many"),
	Entry("an enrolment that is none", cloneSets, "enrolment: All", "spec.enrolment", "Unsupported value"),
	Entry("a rollback that is none", cloneSets, "rollback: Always", "spec.rollback", "Unsupported value"),
	Entry("an admission that is none", cloneSets, "admission: Deny", "spec.admission", "Unsupported value"),
)

var _ = Describe("any value of any field of a ChangeKind", func() {
	It("is refused with the name of the field, or the operator reports what is wrong with it", func(ctx SpecContext) {
		var known []string
		for _, spec := range everyKind {
			k := kindOf(cloneSets, spec)
			for _, at := range placesOf(k.Object["spec"], nil) {
				known = append(known, strings.Join(at.names(), "."))
			}
			Expect(try(ctx, k, func(o *unstructured.Unstructured) string {
				if problem := problemOf(o); problem != "" && !strings.HasPrefix(problem, "spec.") {
					return "not accepted, without the name of the field: " + problem
				}
				return ""
			})).To(BeEmpty())
		}

		By("covering each field of the schema")
		var crd apiextensionsv1.CustomResourceDefinition
		Expect(api.Get(ctx, types.NamespacedName{Name: "changekinds." + v1alpha1.GroupVersion.Group}, &crd)).To(Succeed())
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		for _, field := range fieldsOf(&spec, "") {
			Expect(known).To(ContainElement(field), "a field that no ChangeKind of everyKind has")
		}
	})
})

var _ = Describe("patches of declared kinds", func() {
	It("apply at the API server, only to the values that were read", func(ctx SpecContext) {
		typed := &v1alpha1.ChangeKind{}
		Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(kindOf("configmaps", "enrolment: Label\ncontent: [{path: data.content}]\n"+
			"rollout: {halt: [{path: data.paused, value: 'true'}, {path: data.step, value: '0'}]}").Object, typed)).To(Succeed())
		k, problem := declared.Accept(typed, declared.Served{Kind: "ConfigMap", Namespaced: true})
		Expect(problem).To(BeEmpty())
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(k.GroupVersionKind)
		o.SetNamespace("default")
		o.SetName("declared")
		Expect(api.Create(ctx, o)).To(Succeed())
		patch := func(ops []workload.Op, err error) error {
			Expect(err).NotTo(HaveOccurred())
			text, err := json.Marshal(ops)
			Expect(err).NotTo(HaveOccurred())
			return api.Patch(ctx, o, client.RawPatch(types.JSONPatchType, text))
		}
		data := func() map[string]string {
			values, _, err := unstructured.NestedStringMap(o.Object, "data")
			Expect(err).NotTo(HaveOccurred())
			return values
		}

		By("halting an object that has none of the fields")
		_, _, err := k.Halt(o.Object)
		Expect(err).To(MatchError(ContainSubstring("data is missing")))
		Expect(api.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"data":{"kept":"yes"}}`)))).To(Succeed())
		halt, from, err := k.Halt(o.Object)
		Expect(patch(halt, err)).To(Succeed())
		Expect(data()).To(Equal(map[string]string{"kept": "yes", "paused": "true", "step": "0"}))
		Expect(patch(halt, nil)).NotTo(Succeed(), "the fields changed since they were read")
		resume, problem := k.Resume(o.Object, from)
		Expect(problem).To(BeEmpty())
		Expect(patch(resume, nil)).To(Succeed())
		Expect(data()).To(Equal(map[string]string{"kept": "yes"}))

		By("restoring content that is gone, and content that is new")
		before, err := k.History(o.Object)
		Expect(err).NotTo(HaveOccurred())
		Expect(patch([]workload.Op{{Op: "add", Path: "/data", Value: map[string]any{"content": "a", "other": "b"}}}, nil)).To(Succeed())
		after, err := k.History(o.Object)
		Expect(err).NotTo(HaveOccurred())
		restore, err := k.Restore(o.Object, before)
		Expect(patch(restore, err)).To(Succeed())
		Expect(data()).To(Equal(map[string]string{"other": "b"}))
		Expect(patch(restore, nil)).NotTo(Succeed(), "the content changed since it was read")
		Expect(patch(k.Restore(o.Object, after))).To(Succeed())
		Expect(data()).To(Equal(map[string]string{"content": "a", "other": "b"}))
	})
})

var _ = Describe("webhooks of declared kinds", func() {
	It("are valid for the API server, with the deepest paths", func(ctx SpecContext) {
		var content []string
		for i := range 8 {
			content = append(content, fmt.Sprintf("{path: a%d%s}", i, strings.Repeat(".in", 7)))
		}
		o := kindOf(cloneSets, "content: ["+strings.Join(content, ", ")+"]")
		Expect(api.Create(ctx, o, client.DryRunAll)).To(Succeed())
		typed := &v1alpha1.ChangeKind{}
		Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed)).To(Succeed())
		k, problem := declared.Accept(typed, declared.Served{Kind: "CloneSet", Namespaced: true})
		Expect(problem).To(BeEmpty())
		mutating, validating := k.Webhooks()
		meta := metav1.ObjectMeta{Name: "declared"}
		for _, configuration := range []client.Object{
			&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: mutating},
			&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: validating},
		} {
			Expect(api.Create(ctx, configuration, client.DryRunAll)).To(Succeed())
		}
	})
})
