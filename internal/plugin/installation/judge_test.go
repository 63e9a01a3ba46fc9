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

package installation

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/pki"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// judgement is a table entry: what is different from a healthy installation, and all
// checks that are not ok then.
type judgement struct {
	change func(t *testing.T, f *Facts)
	want   map[string]string
}

func args(f *Facts, args ...string) {
	c := &f.Deployments.Value[0].Spec.Template.Spec.Containers[0]
	c.Args = append(c.Args, args...)
}

func ended(reason string, code int32, ago time.Duration, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: "manager", RestartCount: 3, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: reason, ExitCode: code, FinishedAt: metav1.NewTime(now.Add(-ago)), Message: message,
	}}}
}

func notReady(p *corev1.Pod, status corev1.ContainerStatus) {
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	p.Status.ContainerStatuses = []corev1.ContainerStatus{status}
}

func own(f *Facts, name string) *v1alpha1.OpsConfigInfo {
	for i := range f.Settings.Value {
		if f.Settings.Value[i].Name == name {
			return &f.Settings.Value[i]
		}
	}
	return nil
}

func byURL(t *testing.T, f *Facts) {
	hook(t, f.Mutating, 0, func(h map[string]any) {
		c, _, _ := unstructured.NestedMap(h, "clientConfig")
		delete(c, "service")
		c["url"] = "https://127.0.0.1:1/mutate-apps-v1-deployment"
		h["clientConfig"] = c
	})
}

var judgements = map[string]map[string]judgement{
	"kubernetes": {
		"all is well": {func(*testing.T, *Facts) {}, nil},
		"1.30":        {func(_ *testing.T, f *Facts) { f.Version.Value.GitVersion = "v1.30.0-eks-36c1b5c" }, nil},
		"too old": {func(_ *testing.T, f *Facts) { f.Version.Value.GitVersion = "v1.29.14-gke.100" }, map[string]string{
			"kubernetes.version": "failed: it is v1.29.14-gke.100, where webhooks have no match conditions"}},
		"odd version": {func(_ *testing.T, f *Facts) { f.Version.Value.GitVersion = "next" }, map[string]string{
			"kubernetes.version": `skipped: the API server calls its version "next"`}},
		"no answer": {func(_ *testing.T, f *Facts) {
			f.Version.Err, f.ServerNow = errors.New("connection refused"), time.Time{}
		}, map[string]string{
			"kubernetes.reachable": "failed: connection refused", "kubernetes.version": "skipped: the version is not known",
			"kubernetes.clock": "skipped: the API server did not say what time it is"}},
		"clock of this machine is late": {func(_ *testing.T, f *Facts) { f.LocalNow = now.Add(-time.Minute) }, map[string]string{
			"kubernetes.clock": "warning: this machine is 1m0s behind"}},
		"clock of this machine is early": {func(_ *testing.T, f *Facts) { f.LocalNow = now.Add(11 * time.Second) }, map[string]string{
			"kubernetes.clock": "warning: this machine is 11s ahead"}},
	},
	"kinds": {
		"gone": {func(_ *testing.T, f *Facts) {
			*f.CRDs["changepods.app.ops.cloud.alipay.com"] = notThere[*apiextensionsv1.CustomResourceDefinition]()
		}, map[string]string{"kinds.changepods": "failed: the CustomResourceDefinition changepods.app.ops.cloud.alipay.com is not there"}},
		"forbidden": {func(_ *testing.T, f *Facts) {
			*f.CRDs["changepods.app.ops.cloud.alipay.com"] = forbidden[*apiextensionsv1.CustomResourceDefinition]("get it")
		}, map[string]string{"kinds.changepods": "skipped: your user may not get it"}},
		"not established": {func(_ *testing.T, f *Facts) { f.kind().Status.Conditions = nil }, map[string]string{
			"kinds.changepods": "failed: it is not established"}},
		"names are taken": {func(_ *testing.T, f *Facts) {
			f.kind().Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.NamesAccepted, Status: "False", Message: "cp is taken"}}
		}, map[string]string{"kinds.changepods": "failed: its names are taken by another kind: cp is taken"}},
		"not served": {func(_ *testing.T, f *Facts) { f.kind().Spec.Versions[0].Served = false }, map[string]string{
			"kinds.changepods": "failed: the version v1alpha1 is not served"}},
		"stored otherwise": {func(_ *testing.T, f *Facts) { f.kind().Spec.Versions[0].Storage = false }, map[string]string{
			"kinds.changepods": "warning: objects are stored in another version than v1alpha1"}},
		"older": {func(_ *testing.T, f *Facts) {
			delete(f.kind().Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties, "attempt")
		}, map[string]string{"kinds.changepods.schema": "warning: the kind lacks spec.attempt: it is older than this plugin, and what an operator of the same version writes there is lost"}},
		"older, as the operator": {func(_ *testing.T, f *Facts) {
			f.Plugin = "v0.2.0"
			delete(f.kind().Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties, "podInfos")
		}, map[string]string{
			"kinds.changepods.schema": "warning: the kind lacks spec.podInfos: operator and kinds are older than this plugin",
			"operator.version":        "warning: the operator is v0.1.0, the plugin v0.2.0"}},
		"newer": {func(_ *testing.T, f *Facts) {
			f.kind().Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["more"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		}, map[string]string{"kinds.changepods.schema": "warning: this plugin does not know spec.more: it is older than the kind"}},
		"other": {func(_ *testing.T, f *Facts) {
			p := f.kind().Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
			delete(p, "attempt")
			p["more"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		}, map[string]string{"kinds.changepods.schema": "warning: the kind lacks spec.attempt, and has spec.more, which this plugin does not know"}},
		"other rules": {func(_ *testing.T, f *Facts) {
			p := f.kind().Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
			p["attempt"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		}, map[string]string{"kinds.changepods.schema": "warning: the fields are the same, but not what they may contain, or whether they are in the status"}},
		"other descriptions": {func(_ *testing.T, f *Facts) {
			p := f.kind().Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
			attempt := p["attempt"]
			attempt.Description = "another"
			p["attempt"] = attempt
		}, nil},
	},
	"operator": {
		"absent": {func(_ *testing.T, f *Facts) {
			f.NamespaceObject = notThere[*metav1.PartialObjectMetadata]()
			f.Mutating, f.Validating = notThere[*unstructured.Unstructured](), notThere[*unstructured.Unstructured]()
		}, map[string]string{"operator.namespace": "failed: there is no namespace altershieldoperator-system"}},
		"absent, but for its webhooks": {func(_ *testing.T, f *Facts) { f.NamespaceObject = notThere[*metav1.PartialObjectMetadata]() }, map[string]string{
			"operator.namespace": "failed: there is no namespace altershieldoperator-system",
			"webhooks.left":      "failed: altershieldoperator-validating-webhook-configuration is there, and nobody answers it: releases of workloads that are still blocked are refused"}},
		"elsewhere": {func(_ *testing.T, f *Facts) {
			f.NamespaceObject, f.Namespace = notThere[*metav1.PartialObjectMetadata](), "somewhere"
		}, map[string]string{"operator.namespace": "failed: there is no namespace somewhere; the webhooks are served in altershieldoperator-system"}},
		"being deleted": {func(_ *testing.T, f *Facts) { f.NamespaceObject.Value.DeletionTimestamp = &metav1.Time{Time: now} }, map[string]string{
			"operator.namespace": "failed: altershieldoperator-system is being deleted"}},
		"no Deployment": {func(_ *testing.T, f *Facts) { f.Deployments.Value = nil }, map[string]string{
			"operator.deployment": "failed: no Deployment with the label app.kubernetes.io/name=altershield-operator in altershieldoperator-system",
			"server.configured":   "skipped: the manager's Deployment is not there"}},
		"Deployment is forbidden": {func(_ *testing.T, f *Facts) { f.Deployments = forbidden[[]appsv1.Deployment]("list deployments") }, map[string]string{
			"operator.deployment": "skipped: your user may not list deployments", "server.configured": "skipped: your user may not list deployments"}},
		"reading fails": {func(_ *testing.T, f *Facts) {
			f.Budgets.Err, f.Budgets.Of = errors.New("context deadline exceeded"), "list budgets"
		}, map[string]string{"operator.budget": "failed: list budgets: context deadline exceeded"}},
		"scaled to 0": {func(_ *testing.T, f *Facts) { f.Deployments.Value[0].Spec.Replicas = ptr.To[int32](0) }, map[string]string{
			"operator.deployment": "failed: manager is scaled to 0: nothing is recorded or verified, and releases of blocked workloads are refused"}},
		"one replica": {func(_ *testing.T, f *Facts) {
			f.Deployments.Value[0].Spec.Replicas, f.Deployments.Value[0].Status = ptr.To[int32](1), appsv1.DeploymentStatus{UpdatedReplicas: 1, AvailableReplicas: 1}
		}, nil},
		"none available": {func(_ *testing.T, f *Facts) {
			f.Deployments.Value[0].Status = appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentReplicaFailure, Status: "True", Message: "exceeded quota"}}}
		}, map[string]string{"operator.deployment": "failed: none of 2 replicas of manager is available: exceeded quota"}},
		"rolling out": {func(_ *testing.T, f *Facts) {
			f.Deployments.Value[0].Status = appsv1.DeploymentStatus{UpdatedReplicas: 1, AvailableReplicas: 2}
		}, map[string]string{"operator.deployment": "warning: 2 of 2 replicas of manager are available, 1 up to date"}},
		"a pod cannot pull": {func(_ *testing.T, f *Facts) {
			notReady(&f.Pods.Value[1], corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}})
		}, map[string]string{"operator.replicas": "warning: manager-b: ImagePullBackOff: not found"}},
		"a pod is not ready": {func(_ *testing.T, f *Facts) { notReady(&f.Pods.Value[1], corev1.ContainerStatus{}) }, map[string]string{
			"operator.replicas": "warning: manager-b: runs, and is not ready"}},
		"a pod ended": {func(_ *testing.T, f *Facts) {
			notReady(&f.Pods.Value[1], corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason: "Error", ExitCode: 1, Message: "{}\naltershield-operator: --webhook-port 0 is not a port\n"}}})
		}, map[string]string{"operator.replicas": "warning: manager-b: ended: Error, exit code 1: altershield-operator: --webhook-port 0 is not a port"}},
		"a pod that ends does not count": {func(_ *testing.T, f *Facts) {
			p := replica("c")
			notReady(&p, corev1.ContainerStatus{})
			p.DeletionTimestamp, p.Spec.Containers = &metav1.Time{Time: now}, []corev1.Container{{Name: "manager", Image: "old"}}
			f.Pods.Value = append(f.Pods.Value, p)
		}, nil},
		"two images": {func(_ *testing.T, f *Facts) {
			f.Pods.Value[1].Spec.Containers = []corev1.Container{{Name: "manager", Image: "ghcr.io/traas-stack/altershield-operator:v0.0.9"}}
		}, map[string]string{"operator.images": "warning: ghcr.io/traas-stack/altershield-operator:v0.0.9 and ghcr.io/traas-stack/altershield-operator:v0.1.0"}},
		"out of memory": {func(_ *testing.T, f *Facts) {
			f.Pods.Value[0].Status.ContainerStatuses[0] = ended("OOMKilled", 137, time.Minute, "")
		}, map[string]string{"operator.restarts": "warning: manager-a: 3 restarts, the last one 1m0s ago: OOMKilled, exit code 137"}},
		"an old restart": {func(_ *testing.T, f *Facts) {
			f.Pods.Value[0].Status.ContainerStatuses[0] = ended("Error", 1, 2*time.Hour, "")
		}, nil},
		"a newer plugin":  {func(_ *testing.T, f *Facts) { f.Plugin = "v0.2.0" }, map[string]string{"operator.version": "warning: the operator is v0.1.0, the plugin v0.2.0"}},
		"an older plugin": {func(_ *testing.T, f *Facts) { f.Plugin = "v0.1.0-rc.1" }, map[string]string{"operator.version": "warning: the operator is v0.1.0, the plugin v0.1.0-rc.1"}},
		"a plugin of a checkout": {func(_ *testing.T, f *Facts) { f.Plugin = "v0.1.0-12-gabcdef0" }, map[string]string{
			"operator.version": "skipped: the operator's image is v0.1.0, the plugin's version v0.1.0-12-gabcdef0: not both are releases"}},
		"an image by digest": {func(_ *testing.T, f *Facts) {
			f.Deployments.Value[0].Spec.Template.Spec.Containers[0].Image = "localhost:5000/operator@sha256:ab"
		}, map[string]string{"operator.version": "skipped: the operator's image is without a version, the plugin's version v0.1.0: not both are releases"}},
		"no budget": {func(_ *testing.T, f *Facts) { f.Budgets.Value = nil }, map[string]string{
			"operator.budget": "warning: no PodDisruptionBudget selects the replicas"}},
		"a budget of others": {func(_ *testing.T, f *Facts) {
			f.Budgets.Value[0].Spec.Selector.MatchLabels = map[string]string{"app": "web"}
		}, map[string]string{
			"operator.budget": "warning: no PodDisruptionBudget selects the replicas"}},
		"a budget that lets nothing go": {func(_ *testing.T, f *Facts) { f.Budgets.Value[0].Status.DisruptionsAllowed = 0 }, map[string]string{
			"operator.budget": "warning: budget allows no eviction although all replicas are healthy, so nodes cannot be drained"}},
	},
	"leader": {
		"no lease": {func(_ *testing.T, f *Facts) { f.Lease.Err = notThere[int]().Err }, map[string]string{
			"operator.leader": "failed: the lease altershield-operator is not there: nobody decides", "operator.clock": "skipped: there is no lease to tell it by"}},
		"no election": {func(_ *testing.T, f *Facts) {
			f.Lease.Err = notThere[int]().Err
			args(f, "--leader-elect=false")
		}, map[string]string{"operator.clock": "skipped: there is no lease to tell it by"}},
		"forbidden": {func(_ *testing.T, f *Facts) { f.Lease.Err, f.Lease.Of = forbidden[int]("").Err, "get lease" }, map[string]string{
			"operator.leader": "skipped: your user may not get lease", "operator.clock": "skipped: your user may not get lease"}},
		"released": {func(_ *testing.T, f *Facts) { f.Lease.Value.Spec.HolderIdentity = ptr.To("") }, map[string]string{
			"operator.leader": "failed: nobody holds the lease altershield-operator"}},
		"stale": {func(_ *testing.T, f *Facts) { f.LeaseAt = now.Add(29 * time.Second) }, map[string]string{
			"operator.leader": "failed: the lease of manager-a was last renewed 31s ago: nobody decides", "operator.clock": "skipped: the lease is not renewed"}},
		"not yet stale": {func(_ *testing.T, f *Facts) { f.LeaseAt = now.Add(27 * time.Second) }, nil},
		"renewed by a clock that is behind": {func(_ *testing.T, f *Facts) { f.LeaseAt, f.LeaseRenewed = now.Add(58*time.Second), true }, map[string]string{
			"operator.clock": "warning: the leader's is 1m0s behind"}},
		"renewed by a clock that is ahead": {func(_ *testing.T, f *Facts) { f.LeaseAt = now.Add(-62 * time.Second) }, map[string]string{
			"operator.clock": "warning: the leader's is 1m0s ahead"}},
		"election by a flag without a value": {func(_ *testing.T, f *Facts) {
			f.Lease.Err = notThere[int]().Err
			f.Deployments.Value[0].Spec.Template.Spec.Containers[0].Args = []string{"--leader-elect", "--webhook-port=9443"}
		}, map[string]string{
			"operator.leader": "failed: the lease altershield-operator is not there: nobody decides", "operator.clock": "skipped: there is no lease to tell it by"}},
		"held by another": {func(_ *testing.T, f *Facts) { f.Lease.Value.Spec.HolderIdentity = ptr.To("laptop_77") }, map[string]string{
			"operator.leader": "failed: laptop holds the lease, and is none of the operator's pods: another manager decides, or its pod is gone"}},
		"held by a pod that is not ready": {func(_ *testing.T, f *Facts) { notReady(&f.Pods.Value[0], corev1.ContainerStatus{}) }, map[string]string{
			"operator.leader": "warning: manager-a leads and is not ready: runs, and is not ready", "operator.replicas": "warning: manager-a: runs, and is not ready"}},
		"held by a pod in the network of its node": {func(_ *testing.T, f *Facts) {
			f.Pods.Value[0].Spec.HostNetwork, f.Pods.Value[0].Spec.NodeName = true, "node-1.example"
			f.Lease.Value.Spec.HolderIdentity = ptr.To("node-1_77")
		}, nil},
		"held by a pod of a long name": {func(_ *testing.T, f *Facts) {
			f.Pods.Value[0].Name = "manager-" + strings.Repeat("x", 60)
			f.Lease.Value.Spec.HolderIdentity = ptr.To("manager-" + strings.Repeat("x", 55) + "_77")
		}, nil},
		"pods are forbidden": {func(_ *testing.T, f *Facts) { f.Pods.Err, f.Pods.Of = forbidden[int]("").Err, "list pods" }, map[string]string{
			"operator.replicas": "skipped: your user may not list pods", "operator.images": "skipped: your user may not list pods",
			"operator.restarts": "skipped: your user may not list pods"}},
	},
	"webhooks": {
		"mutating is gone": {func(_ *testing.T, f *Facts) { f.Mutating = notThere[*unstructured.Unstructured]() }, map[string]string{
			"webhooks.mutating": "failed: altershieldoperator-mutating-webhook-configuration is not there: releases are recorded only after they were stored, and no rollout is held from its beginning"}},
		"both are gone": {func(_ *testing.T, f *Facts) {
			f.Mutating, f.Validating = notThere[*unstructured.Unstructured](), notThere[*unstructured.Unstructured]()
		}, map[string]string{
			"webhooks.mutating":   "failed: altershieldoperator-mutating-webhook-configuration is not there: releases are recorded only after they were stored, and no rollout is held from its beginning",
			"webhooks.validating": "failed: altershieldoperator-validating-webhook-configuration is not there: no release of a blocked workload is denied"}},
		"both are forbidden": {func(_ *testing.T, f *Facts) {
			f.Mutating, f.Validating = forbidden[*unstructured.Unstructured]("get m"), forbidden[*unstructured.Unstructured]("get v")
		}, map[string]string{"webhooks.mutating": "skipped: your user may not get m", "webhooks.validating": "skipped: your user may not get v"}},
		"empty": {func(_ *testing.T, f *Facts) { f.Validating.Value.Object["webhooks"] = []any{} }, map[string]string{
			"webhooks.validating": "failed: altershieldoperator-validating-webhook-configuration has no webhooks: no release of a blocked workload is denied",
			"webhooks.expected":   "failed: " + everyHook("pqv", " is missing"),
			"webhooks.block":      "failed: no webhook denies releases of blocked workloads"}},
		"both are empty": {func(_ *testing.T, f *Facts) {
			f.Mutating.Value.Object["webhooks"], f.Validating.Value.Object["webhooks"] = []any{}, []any{}
		}, map[string]string{
			"webhooks.mutating":    "failed: altershieldoperator-mutating-webhook-configuration has no webhooks: releases are recorded only after they were stored, and no rollout is held from its beginning",
			"webhooks.validating":  "failed: altershieldoperator-validating-webhook-configuration has no webhooks: no release of a blocked workload is denied",
			"webhooks.expected":    "failed: " + everyHook("mpqv", " is missing"),
			"webhooks.block":       "failed: no webhook denies releases of blocked workloads",
			"webhooks.authority":   "skipped: there is no webhook that could carry one",
			"webhooks.certificate": "skipped: there is no webhook that carries an authority"}},
		"fails open": {func(t *testing.T, f *Facts) {
			hook(t, f.Validating, 1, func(h map[string]any) { h["failurePolicy"] = "Ignore" })
		}, map[string]string{
			"webhooks.expected": "failed: vdeployment.kb.io: failurePolicy is Ignore, not Fail",
			"webhooks.block":    "failed: the failure policy of vdeployment.kb.io is Ignore: releases of blocked workloads pass while the operator is down"}},
		"other rules": {func(t *testing.T, f *Facts) {
			hook(t, f.Mutating, 0, func(h map[string]any) { h["timeoutSeconds"], h["rules"] = int64(30), []any{} })
		}, map[string]string{"webhooks.expected": "failed: mdeployment.kb.io: rules was changed, timeoutSeconds is 30, not 3"}},
		"other match conditions": {func(t *testing.T, f *Facts) {
			hook(t, f.Mutating, 0, func(h map[string]any) {
				h["matchConditions"] = []any{map[string]any{"name": "never", "expression": "false"}}
			})
		}, map[string]string{"webhooks.expected": "failed: mdeployment.kb.io: matchConditions was added"}},
		"another selector": {func(t *testing.T, f *Facts) {
			hook(t, f.Mutating, 0, func(h map[string]any) { h["namespaceSelector"] = map[string]any{} })
		}, map[string]string{
			"webhooks.expected": "failed: mdeployment.kb.io: namespaceSelector was changed"}},
		"one more namespace is left out": {func(t *testing.T, f *Facts) {
			hook(t, f.Mutating, 0, func(h map[string]any) {
				expressions, _, _ := unstructured.NestedSlice(h, "namespaceSelector", "matchExpressions")
				expressions = append(expressions, map[string]any{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": []any{"bank"}})
				if err := unstructured.SetNestedSlice(h, expressions, "namespaceSelector", "matchExpressions"); err != nil {
					t.Fatal(err)
				}
			})
		}, nil},
		"of another version": {func(t *testing.T, f *Facts) {
			f.Plugin = "v0.2.0"
			hook(t, f.Mutating, 0, func(h map[string]any) { h["timeoutSeconds"] = int64(2) })
		}, map[string]string{
			"webhooks.expected": "warning: mdeployment.kb.io: timeoutSeconds is 2, not 3 (operator and plugin are of different versions, which may be why)",
			"operator.version":  "warning: the operator is v0.1.0, the plugin v0.2.0"}},
		"by URL": {byURL, map[string]string{"webhooks.expected": "warning: they call a URL: that of a manager under development, outside of the cluster"}},
		"a manager outside of the cluster, as in the demo": {func(t *testing.T, f *Facts) {
			f.Deployments, f.Pods = is([]appsv1.Deployment{}), is([]corev1.Pod{})
			f.Service, f.Certificate = notThere[*corev1.Service](), notThere[*corev1.Secret]()
			byURL(t, f)
		}, map[string]string{
			"operator.deployment": "skipped: " + runsOutside, "webhooks.certificate": "skipped: " + runsOutside, "webhooks.service": "skipped: " + runsOutside,
			"server.configured": "skipped: the manager's Deployment is not there",
			"webhooks.expected": "warning: they call a URL: that of a manager under development, outside of the cluster",
		}},
		"no service": {func(_ *testing.T, f *Facts) { f.Service = notThere[*corev1.Service]() }, map[string]string{
			"webhooks.service": "failed: there is no Service altershieldoperator-webhook-service in altershieldoperator-system"}},
		"another port": {func(_ *testing.T, f *Facts) { f.Service.Value.Spec.Ports[0].Port = 8443 }, map[string]string{
			"webhooks.service": "failed: the Service altershieldoperator-webhook-service has no port 443"}},
		"no endpoints": {func(_ *testing.T, f *Facts) { f.Endpoints.Value[0].Endpoints[0].Conditions.Ready = ptr.To(false) }, map[string]string{
			"webhooks.service": "failed: none is ready: releases of blocked workloads are refused, all others pass unseen"}},
		"endpoints are forbidden": {func(_ *testing.T, f *Facts) { f.Endpoints = forbidden[[]discoveryv1.EndpointSlice]("list endpoints") }, map[string]string{
			"webhooks.service": "skipped: your user may not list endpoints"}},
		"the operator misses one": {func(_ *testing.T, f *Facts) {
			o := own(f, settings.NameBlocking)
			o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionWebhooksConfigured, Status: "False", Message: "v: missing"})
		}, map[string]string{"webhooks.reported": "failed: v: missing"}},
	},
	"answers": {
		"nowhere to try": {func(_ *testing.T, f *Facts) { f.Answer.Value = DryRun{} }, map[string]string{
			"webhooks.answer": "skipped: no enrolled namespace is known in which to try it"}},
		"forbidden": {func(_ *testing.T, f *Facts) { f.Answer = forbidden[DryRun]("create deployments") }, map[string]string{
			"webhooks.answer": "skipped: your user may not create deployments"}},
		"not stamped": {func(_ *testing.T, f *Facts) { f.Answer.Value.Stamped = false }, map[string]string{
			"webhooks.answer": "failed: in shop it passed without being labelled with its version: the API server does not call the mutating webhook, or got no answer"}},
		"a policy denies": {func(_ *testing.T, f *Facts) {
			f.Answer.Value = DryRun{Namespace: "shop", Denied: `admission webhook "pdeployment.kb.io" denied the request: no release on Fridays`}
		}, nil},
		"somebody else denies": {func(_ *testing.T, f *Facts) {
			f.Answer.Value = DryRun{Namespace: "shop", Denied: `admission webhook "validate.kyverno.svc" denied the request: no pause image`}
		}, map[string]string{"webhooks.answer": `skipped: something else denies it in shop: admission webhook "validate.kyverno.svc" denied the request: no pause image`}},
		"somebody else fails": {func(_ *testing.T, f *Facts) {
			f.Answer.Value = DryRun{Namespace: "shop", Denied: `Internal error occurred: failed calling webhook "validate.kyverno.svc": no endpoints`}
		}, map[string]string{"webhooks.answer": `skipped: something else denies it in shop: Internal error occurred: failed calling webhook "validate.kyverno.svc": no endpoints`}},
		"the operator's fails": {func(_ *testing.T, f *Facts) {
			f.Answer.Value = DryRun{Namespace: "shop", Denied: `Internal error occurred: failed calling webhook "vdeployment.kb.io": no endpoints`}
		}, map[string]string{"webhooks.answer": `failed: Internal error occurred: failed calling webhook "vdeployment.kb.io": no endpoints`}},
	},
	"certificates": {
		"none injected": {func(t *testing.T, f *Facts) {
			hook(t, f.Mutating, 0, func(h map[string]any) { unstructured.RemoveNestedField(h, "clientConfig", "caBundle") })
		}, map[string]string{
			"webhooks.authority":   "failed: a webhook of altershieldoperator-mutating-webhook-configuration has no certificate of an authority: API servers cannot call it",
			"webhooks.certificate": "failed: it is not signed by an authority that the webhooks carry: API servers refuse it"}},
		"authority ended": {func(_ *testing.T, f *Facts) { f.later(900 * 24 * time.Hour) }, map[string]string{
			"webhooks.authority": "failed: it ended on 2028-10-19", "webhooks.certificate": "failed: it ended on 2026-08-01T12:00:00Z"}},
		"authority ends soon": {func(_ *testing.T, f *Facts) { f.later(890 * 24 * time.Hour) }, map[string]string{
			"webhooks.authority": "warning: it ends on 2028-10-19, and should have been renewed", "webhooks.certificate": "failed: it ended on 2026-08-01T12:00:00Z"}},
		"certificate ends soon": {func(_ *testing.T, f *Facts) { f.later(81 * 24 * time.Hour) }, map[string]string{
			"webhooks.certificate": "warning: it ends on 2026-08-01T12:00:00Z, and should have been renewed"}},
		"by another authority": {func(t *testing.T, f *Facts) {
			other, err := pki.NewCA("other", now, 24*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			f.certify(t, other, 90*24*time.Hour)
		}, map[string]string{"webhooks.certificate": "failed: it is not signed by an authority that the webhooks carry: API servers refuse it"}},
		"for another name": {func(_ *testing.T, f *Facts) { args(f, "--webhook-service=other") }, map[string]string{
			"webhooks.expected":    "failed: " + everyHook("mpqv", ": clientConfig was changed"),
			"webhooks.certificate": "failed: it is not for other.altershieldoperator-system.svc"}},
		"gone": {func(_ *testing.T, f *Facts) { f.Certificate = notThere[*corev1.Secret]() }, map[string]string{
			"webhooks.certificate": "failed: the Secret altershieldoperator-webhook-server-cert is not there"}},
		"empty": {func(_ *testing.T, f *Facts) { f.Certificate.Value.Data = nil }, map[string]string{
			"webhooks.certificate": "failed: the Secret altershieldoperator-webhook-server-cert has no certificate in tls.crt"}},
		"forbidden": {func(_ *testing.T, f *Facts) { f.Certificate = forbidden[*corev1.Secret]("get secret") }, map[string]string{
			"webhooks.certificate": "skipped: your user may not get secret"}},
		"from files": {func(_ *testing.T, f *Facts) { args(f, "--webhook-cert-path=/certs") }, map[string]string{
			"webhooks.certificate": "skipped: it comes from files that are no mounted Secret"}},
	},
	"rights": {
		"no account": {func(_ *testing.T, f *Facts) { f.Account = notThere[*metav1.PartialObjectMetadata]() }, map[string]string{
			"rights.account": "failed: there is no ServiceAccount altershieldoperator-controller-manager in altershieldoperator-system"}},
		"no roles": {func(_ *testing.T, f *Facts) {
			f.ClusterRole, f.Role = notThere[*rbacv1.ClusterRole](), notThere[*rbacv1.Role]()
		}, map[string]string{
			"rights.cluster":   "failed: there is no ClusterRole altershieldoperator-manager-role",
			"rights.namespace": "failed: there is no Role altershieldoperator-manager-role in altershieldoperator-system"}},
		"no bindings": {func(_ *testing.T, f *Facts) {
			f.ClusterRoleBinding, f.RoleBinding = notThere[*rbacv1.ClusterRoleBinding](), notThere[*rbacv1.RoleBinding]()
		}, map[string]string{
			"rights.cluster":   "failed: there is no ClusterRoleBinding altershieldoperator-manager-rolebinding",
			"rights.namespace": "failed: there is no RoleBinding altershieldoperator-manager-rolebinding in altershieldoperator-system"}},
		"bindings of others": {func(_ *testing.T, f *Facts) {
			f.ClusterRoleBinding.Value.RoleRef.Name, f.RoleBinding.Value.Subjects[0].Name = "view", "default"
		}, map[string]string{
			"rights.cluster":   "failed: the ClusterRoleBinding binding is of the ClusterRole view, not of the ClusterRole altershieldoperator-manager-role",
			"rights.namespace": "failed: the RoleBinding binding does not name the ServiceAccount altershieldoperator-controller-manager of altershieldoperator-system"}},
		"a verb is gone": {func(_ *testing.T, f *Facts) { f.verbs("deployments", "get", "list", "watch") }, map[string]string{
			"rights.cluster": "failed: it may not patch deployments.apps: the ClusterRole altershieldoperator-manager-role is not that of this version"}},
		"a verb of one kind is gone": {func(_ *testing.T, f *Facts) { f.verbs("statefulsets", "get", "list", "watch") }, map[string]string{
			"rights.cluster": "failed: it may not patch statefulsets.apps: the ClusterRole altershieldoperator-manager-role is not that of this version"}},
		"older than the plugin": {func(_ *testing.T, f *Facts) {
			f.Plugin = "v0.2.0"
			f.verbs("deployments", "get", "list", "watch")
		}, map[string]string{
			"rights.cluster":   "warning: it may not patch deployments.apps, which an operator of this plugin's version needs",
			"operator.version": "warning: the operator is v0.1.0, the plugin v0.2.0"}},
		"wildcards": {func(_ *testing.T, f *Facts) {
			f.ClusterRole.Value.Rules = []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}
			f.Role.Value.Rules = nil
		}, nil},
		"may not restore, with its own certificate": {func(_ *testing.T, f *Facts) { f.verbs("mutatingwebhookconfigurations", "get", "list", "watch") }, map[string]string{
			"rights.cluster": "failed: it may not update mutatingwebhookconfigurations.admissionregistration.k8s.io altershieldoperator-mutating-webhook-configuration: the ClusterRole altershieldoperator-manager-role is not that of this version"}},
		"may not restore, on purpose": {func(_ *testing.T, f *Facts) {
			args(f, "--webhook-cert-path", "/certs")
			f.verbs("mutatingwebhookconfigurations", "get", "list", "watch")
		}, map[string]string{
			"rights.cluster":       "warning: it may not update mutatingwebhookconfigurations.admissionregistration.k8s.io altershieldoperator-mutating-webhook-configuration, so webhook configurations that somebody changes stay so",
			"webhooks.certificate": "skipped: it comes from files that are no mounted Secret"}},
		"users' roles": {func(_ *testing.T, f *Facts) {
			*f.UserRoles["viewer-role"] = notThere[*rbacv1.ClusterRole]()
			delete(f.UserRoles["editor-role"].Value.Labels, "rbac.authorization.k8s.io/aggregate-to-edit")
			f.UserRoles["admin-role"].Value.Rules = nil
		}, map[string]string{"rights.users": "warning: " + strings.Join([]string{
			"the ClusterRole altershieldoperator-admin-role lacks: delete/deletecollection changepods.app.ops.cloud.alipay.com, delete/deletecollection changeworkloads.app.ops.cloud.alipay.com, " +
				"create/delete/deletecollection/patch/update opsconfiginfoes.app.ops.cloud.alipay.com",
			"the ClusterRole altershieldoperator-editor-role lacks the label rbac.authorization.k8s.io/aggregate-to-edit=true",
			"there is no ClusterRole altershieldoperator-viewer-role"}, "; ")}},
	},
	"settings": {
		"one is gone": {func(_ *testing.T, f *Facts) { f.Settings.Value = f.Settings.Value[1:] }, map[string]string{
			"settings.there": "warning: there is no OpsConfigInfo blocking in altershieldoperator-system: the default is in force"}},
		"forbidden": {func(_ *testing.T, f *Facts) { f.Settings = forbidden[[]v1alpha1.OpsConfigInfo]("list settings") }, map[string]string{
			"settings.there": "skipped: your user may not list settings", "settings.accepted": "skipped: your user may not list settings",
			"settings.defense": "skipped: your user may not list settings", "settings.namespaces": "skipped: your user may not list settings",
			"settings.locked": "skipped: your user may not list settings", "webhooks.reported": "skipped: your user may not list settings"}},
		"not valid": {func(_ *testing.T, f *Facts) {
			o := own(f, settings.NameBranch)
			o.Spec.Enable, o.Spec.Content = true, "many"
			*o = *setting(*o)
		}, map[string]string{"settings.accepted": `failed: altershieldoperator-system/branch: spec.content: "many" is not a number of pods per batch; write a whole number from 1 to 200; the value in force is the last valid one, enable=false content="10"`}},
		"unknown": {func(_ *testing.T, f *Facts) {
			f.Settings.Value = append(f.Settings.Value, *setting(v1alpha1.OpsConfigInfo{ObjectMeta: named("blokcing"), Spec: v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeBlocking}}))
		}, map[string]string{"settings.accepted": `warning: altershieldoperator-system/blokcing: metadata.name: no setting is named "blokcing", so the object is ignored; delete it, or name it one of ` +
			"blocking, branch, rollback, selfhealing, halting, silence, timeouts, history, admission, observe, quarantine, limit, holding, eviction"}},
		"not looked at": {func(_ *testing.T, f *Facts) { own(f, settings.NameBranch).Generation = 2 }, map[string]string{
			"settings.accepted": "warning: the operator has not looked at altershieldoperator-system/branch yet"}},
		"lowered": {func(_ *testing.T, f *Facts) {
			for name, on := range map[string]bool{settings.NameBlocking: false, settings.NameObserve: true, settings.NameRollback: false, settings.NameHalting: false, settings.NameQuarantine: false} {
				o := own(f, name)
				o.Spec.Enable = on
				*o = *setting(*o)
			}
		}, map[string]string{"settings.defense": "warning: observe is on: releases are recorded and verified, and nothing is done about them; blocking is off: releases that fail do not block their workloads; " +
			"rollback is off: releases whose pods do not come up stay; halting is off: a rollout that fails goes on to all pods; quarantine is off: versions that never started are denied without an end"}},
		"an uninstall did not end": {func(_ *testing.T, f *Facts) {
			own(f, settings.NameObserve).Spec = settings.Leave(own(f, settings.NameObserve).Spec)
		}, map[string]string{"settings.defense": "failed: the operator was told to leave by an uninstall that did not end: everything is in observe mode"}},
		"a namespace observes": {func(_ *testing.T, f *Facts) {
			f.Settings.Value = append(f.Settings.Value, *setting(v1alpha1.OpsConfigInfo{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: settings.NameObserve}, Spec: v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: true},
			}))
		}, nil},
		"a namespace's is not valid": {func(_ *testing.T, f *Facts) {
			f.Settings.Value = append(f.Settings.Value, *setting(v1alpha1.OpsConfigInfo{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: settings.NameBlocking}, Spec: v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve},
			}))
		}, map[string]string{"settings.accepted": `warning: shop/blocking: spec.type: the setting "blocking" is of type isBlockingUp, not isObserve; spec is ignored; the value in force is the default`}},
		"a namespace's that is not defended": {func(_ *testing.T, f *Facts) {
			f.Settings.Value = append(f.Settings.Value, v1alpha1.OpsConfigInfo{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "blocking"}})
		}, nil},
	},
	"policies": {
		"none": {func(_ *testing.T, f *Facts) { f.Policies.Value = nil }, map[string]string{
			"policies.default": "warning: there is no DefensePolicy default in altershieldoperator-system: releases whose pods crash after they were ready pass"}},
		"observing": {func(_ *testing.T, f *Facts) { f.Policies.Value[0].Spec.Mode = v1alpha1.ModeObserve }, map[string]string{
			"policies.default": "warning: its mode is Observe: what it finds fails no release"}},
		"not accepted": {func(_ *testing.T, f *Facts) {
			f.Policies.Value[0].Status.Conditions = said(false, v1alpha1.ReasonInvalidPolicy, "spec.checks[0]: no")
		}, map[string]string{"policies.accepted": "failed: altershieldoperator-system/default: spec.checks[0]: no"}},
		"a namespace's is not accepted": {func(_ *testing.T, f *Facts) {
			f.Policies.Value = append(f.Policies.Value, v1alpha1.DefensePolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "mine"}, Status: v1alpha1.DefensePolicyStatus{Conditions: said(false, v1alpha1.ReasonInvalidPolicy, "no")},
			})
		}, map[string]string{"policies.accepted": "warning: shop/mine: no"}},
		"forbidden": {func(_ *testing.T, f *Facts) { f.Policies = forbidden[[]v1alpha1.DefensePolicy]("list policies") }, map[string]string{
			"policies.default": "skipped: your user may not list policies", "policies.accepted": "skipped: your user may not list policies"}},
	},
	"server": {
		"without a token": {func(_ *testing.T, f *Facts) {
			f.connect("True")
			f.Deployments.Value[0].Spec.Template.Spec.Containers[0].Args = []string{"--altershield-url=http://server"}
		}, map[string]string{
			"server.token": "failed: the manager has no --altershield-token-file: the server refuses what it sends, and its callbacks are refused"}},
		"connected": {func(_ *testing.T, f *Facts) { f.connect("True") }, nil},
		"does not answer": {func(_ *testing.T, f *Facts) { f.connect("False") }, map[string]string{
			"server.healthy": "failed: manager-a: Unreachable: connection refused; manager-b: Unreachable: connection refused"}},
		"not asked yet": {func(_ *testing.T, f *Facts) {
			f.connect("True")
			f.Pods.Value[1].Status.Conditions = f.Pods.Value[1].Status.Conditions[:1]
		}, map[string]string{"server.healthy": "warning: manager-b did not say yet"}},
		"no Secret": {func(_ *testing.T, f *Facts) { f.connect("True"); f.Token = notThere[*corev1.Secret]() }, map[string]string{
			"server.token": "failed: there is no Secret altershield-token in altershieldoperator-system"}},
		"no key": {func(_ *testing.T, f *Facts) { f.connect("True"); f.Token.Value.Data = nil }, map[string]string{
			"server.token": "failed: the Secret altershield-token has no key token"}},
		"Secret is forbidden": {func(_ *testing.T, f *Facts) { f.connect("True"); f.Token = forbidden[*corev1.Secret]("get secret") }, map[string]string{
			"server.token": "skipped: your user may not get secret"}},
	},
	"namespaces": {
		"of the system": {func(_ *testing.T, f *Facts) { f.label("kube-system", "enabled"); f.label(ns, "enabled") }, map[string]string{
			"namespaces.excluded": "warning: webhooks and controllers leave these out, whatever their labels: kube-system, altershieldoperator-system"}},
		"another value": {func(_ *testing.T, f *Facts) { f.label("bank", "true"); f.label("other", "disabled") }, map[string]string{
			"namespaces.excluded": "warning: labels that have no effect: bank (admission-webhook-altershield=true: only the value enabled counts)"}},
		"forbidden": {func(_ *testing.T, f *Facts) {
			f.Namespaces = forbidden[[]metav1.PartialObjectMetadata]("list namespaces")
		}, map[string]string{
			"namespaces.enrolled": "skipped: your user may not list namespaces", "namespaces.excluded": "skipped: your user may not list namespaces"}},
		"workloads are forbidden": {func(_ *testing.T, f *Facts) { f.Blocked = forbidden[[]metav1.PartialObjectMetadata]("list workloads") }, map[string]string{
			"namespaces.workloads": "skipped: your user may not list workloads"}},
	},
}

// later is a healthy installation whose time went on, with everything but certificates.
func (f *Facts) later(d time.Duration) {
	f.LocalNow, f.ServerNow = now.Add(d), now.Add(d)
}

// verbs are all that the manager may do to a resource in the whole cluster.
func (f *Facts) verbs(resource string, verbs ...string) {
	rules := slices.Clone(f.ClusterRole.Value.Rules)
	found := false
	for i := range rules {
		if rule := &rules[i]; slices.Contains(rule.Resources, resource) {
			// Other resources may share the rule.
			others := slices.DeleteFunc(slices.Clone(rule.Resources), func(r string) bool { return r == resource })
			one := *rule.DeepCopy()
			one.Resources, one.Verbs = []string{resource}, verbs
			rule.Resources, found = others, true
			rules = append(rules, one)
		}
	}
	if !found {
		panic("the ClusterRole has no rule for " + resource)
	}
	f.ClusterRole.Value.Rules = rules
}

// everyHook names those whose names begin so, of all kinds, in the order of their names,
// with what is said of each.
func everyHook(prefixes, what string) string {
	var all []string
	for _, prefix := range prefixes {
		for _, kind := range []string{"daemonset", "deployment", "statefulset"} {
			all = append(all, string(prefix)+kind+".kb.io"+what)
		}
	}
	return strings.Join(all, "; ")
}

func (f *Facts) label(namespace, value string) {
	f.Namespaces.Value = append(f.Namespaces.Value, metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{v1alpha1.EnrolledLabel: value}},
	})
}

// connect configures a server, which answers or not.
func (f *Facts) connect(healthy corev1.ConditionStatus) {
	args(f, "--altershield-url=http://altershield:8080", "--altershield-token-file=/var/run/altershield/token")
	spec := &f.Deployments.Value[0].Spec.Template.Spec
	spec.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "altershield-token"}}}}
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/var/run/altershield/"}}
	f.Token = is(&corev1.Secret{Data: map[string][]byte{"token": []byte("0123456789abcdef\n")}})
	for i := range f.Pods.Value {
		c := corev1.PodCondition{Type: v1alpha1.ConditionServerHealthy, Status: healthy, Reason: v1alpha1.ReasonAnswers}
		if healthy == "False" {
			c.Reason, c.Message = v1alpha1.ReasonUnreachable, "connection refused"
		}
		f.Pods.Value[i].Status.Conditions = append(f.Pods.Value[i].Status.Conditions, c)
	}
}

func TestJudge(t *testing.T) {
	for group, cases := range judgements {
		for name, tc := range cases {
			t.Run(group+": "+name, func(t *testing.T) {
				f := healthy(t)
				tc.change(t, f)
				r := Judge(f)
				got, unhealthy := map[string]string{}, false
				for _, g := range r.Groups {
					for _, c := range g.Checks {
						if c.Status != OK {
							got[c.ID] = string(c.Status) + ": " + c.Message
						}
						unhealthy = unhealthy || c.Status == Failed
						if bad := c.Status == Failed || c.Status == Warning; bad != (c.Remedy != "") || bad != (c.Docs != "") {
							t.Errorf("%s is %s, with the remedy %q and the page %q", c.ID, c.Status, c.Remedy, c.Docs)
						}
						if c.Docs != "" {
							anchored(t, c.Docs)
						}
					}
				}
				if tc.want == nil {
					tc.want = map[string]string{}
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("checks that are not ok (-want +got):\n%s", diff)
				}
				if r.Healthy == unhealthy {
					t.Errorf("healthy is %t", r.Healthy)
				}
			})
		}
	}
}

// TestNothingRead: who may read nothing knows neither that all is well nor that it is not.
func TestNothingRead(t *testing.T) {
	if r := (Report{}).judged(); !r.Unknown || r.Healthy {
		t.Errorf("unknown is %t, healthy %t", r.Unknown, r.Healthy)
	}
}

// What is only told.
func TestTold(t *testing.T) {
	f := healthy(t)
	own(f, settings.NameBlocking).Spec.Locked = true
	f.Settings.Value = append(f.Settings.Value, *setting(v1alpha1.OpsConfigInfo{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: settings.NameObserve}, Spec: v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: true},
	}))
	f.Blocked = is([]metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}, {ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere"}}})
	release := func(status v1alpha1.ChangeWorkloadStatusType, condition string, is metav1.ConditionStatus) v1alpha1.ChangeWorkload {
		return v1alpha1.ChangeWorkload{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Status: v1alpha1.ChangeWorkloadStatus{
			Status: status, Conditions: []metav1.Condition{{Type: condition, Status: is}}}}
	}
	denied := release(v1alpha1.ChangeWorkloadSuspend, v1alpha1.ConditionDefended, metav1.ConditionFalse)
	denied.Status.DeniedWrite = &v1alpha1.DeniedWrite{Write: "Block"}
	f.Releases = is([]v1alpha1.ChangeWorkload{
		release(v1alpha1.ChangeWorkloadRunning, v1alpha1.ConditionHeld, metav1.ConditionTrue),
		release(v1alpha1.ChangeWorkloadRunning, v1alpha1.ConditionHeld, metav1.ConditionTrue),
		release(v1alpha1.ChangeWorkloadCanceled, v1alpha1.ConditionHeld, metav1.ConditionTrue),
		release(v1alpha1.ChangeWorkloadSuspend, v1alpha1.ConditionDefended, metav1.ConditionFalse),
		denied,
	})
	f.Mine = is([]Access{{For: "verdict"}})
	f.Mine.Value[0].Verb, f.Mine.Value[0].Resource, f.Mine.Value[0].Subresource, f.Mine.Value[0].Namespace = "patch", "changepods", "status", "shop"
	f.Account = is(&metav1.PartialObjectMetadata{})
	r := Judge(f)
	got := map[string]string{}
	for _, g := range r.Groups {
		for _, c := range g.Checks {
			got[c.ID] = c.Message
		}
	}
	for id, want := range map[string]string{
		"settings.locked":      "no namespace or workload has a value of its own for blocking",
		"settings.namespaces":  "these lower their own defense: shop (observe, enable=true)",
		"namespaces.workloads": "1 workload blocked, 2 workloads held, 1 release with writes that something denies: kubectl altershield status -A",
		"namespaces.enrolled":  "1 namespace: shop",
		"rights.yours":         "not for all, in the namespace shop: verdict: you may not patch changepods/status",
		"operator.leader":      "manager-a",
		"webhooks.certificate": "until 2026-08-01",
	} {
		if got[id] != want {
			t.Errorf("%s: %q, want %q", id, got[id], want)
		}
	}
	if !r.Healthy || r.OperatorVersion != "v0.1.0" || !r.CheckedAt.Time.Equal(now) {
		t.Errorf("%+v", r)
	}
}

var heading = regexp.MustCompile(`(?m)^#+ (.+)$`)

// anchored fails unless the page has the anchor, as GitHub makes it of a heading.
func anchored(t *testing.T, address string) {
	t.Helper()
	page, anchor, _ := strings.Cut(strings.TrimPrefix(address, docs), "#")
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", page))
	if err != nil {
		t.Errorf("%s: %v", address, err)
		return
	}
	for _, h := range heading.FindAllStringSubmatch(string(data), -1) {
		if made := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(h[1]), ""); anchor == "" || strings.ReplaceAll(made, " ", "-") == anchor {
			return
		}
	}
	t.Errorf("%s: there is no such heading", address)
}
