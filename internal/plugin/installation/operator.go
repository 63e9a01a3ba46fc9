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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	// recent is the age up to which a restart of the manager is a warning.
	recent = time.Hour

	// aggregated is the label of ClusterRoles that the operator has, too.
	aggregated = "altershield.defense.antgroup.com/aggregate-to-manager"

	pageDown       = "tasks/respond-to-an-alert.md#altershielddown"
	pageLeader     = "tasks/respond-to-an-alert.md#altershieldnoleader"
	pageDeclare    = "tasks/declare-kind.md"
	pageServerDown = "tasks/respond-to-an-alert.md#altershieldserverdown"
)

func (f *Facts) reachable(c Check) Check {
	if f.answered() {
		return c.ok("")
	}
	return c.fail(f.Deployments.Err.Error(), "log in again, or choose another context with --context; see kubectl cluster-info", pageCheck)
}

// kindNames returns the names of the operator's CustomResourceDefinitions.
func kindNames() []string {
	var names []string
	for _, plural := range []string{"changekinds", "changepods", "changeworkloads", "defenseendpoints", "defensepolicies", "opsconfiginfoes"} {
		names = append(names, plural+"."+v1alpha1.GroupVersion.Group)
	}
	return names
}

func (f *Facts) kinds() (checks []Check) {
	for i, name := range kindNames() {
		plural, _, _ := strings.Cut(name, ".")
		checks = append(checks, on(f.CRDs[i], "kinds."+plural, "the kind "+plural+" is served", func(c Check) Check {
			return served(c, name, f.CRDs[i])
		}))
	}
	return checks
}

// declared checks that the objects of all ChangeKinds are defended.
func (f *Facts) declared(c Check) Check {
	var failed, waiting []string
	remedy := "see kubectl describe changekind NAME"
	for i := range f.ChangeKinds.Value {
		o := &f.ChangeKinds.Value[i]
		why := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
		switch {
		case why == nil || why.ObservedGeneration < o.Generation:
			waiting = append(waiting, o.Name+": the operator has not read it yet")
			continue
		case why.Status == metav1.ConditionTrue:
			continue
		case why.Reason != v1alpha1.ReasonNotDefended: // it takes time
			waiting = append(waiting, o.Name+": "+why.Message)
			continue
		}
		for _, name := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionAuthorized, v1alpha1.ConditionServed} {
			if said := meta.FindStatusCondition(o.Status.Conditions, name); said != nil && said.Status == metav1.ConditionFalse {
				why = said
			}
		}
		failed = append(failed, o.Name+": "+why.Message)
		if why.Type == v1alpha1.ConditionAuthorized {
			remedy = `give the permissions to the operator in a ClusterRole with the label ` + aggregated + `: "true"`
		}
	}
	switch {
	case len(failed) > 0:
		return c.fail(some(append(failed, waiting...)), remedy, pageDeclare)
	case len(waiting) > 0:
		return c.warn(some(waiting), "wait some seconds; "+remedy, pageDeclare)
	}
	return c.ok("%d", len(f.ChangeKinds.Value))
}

// served checks that a kind is established, and that the API server serves the version of the plugin.
func served(c Check, name string, live Read[*apiextensionsv1.CustomResourceDefinition]) Check {
	if live.missing() {
		return c.fail("the CustomResourceDefinition "+name+" does not exist", applyAgain, pageInstall)
	}
	established, why := false, ""
	for _, condition := range live.Value.Status.Conditions {
		established = established || condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue
		if condition.Status == apiextensionsv1.ConditionFalse {
			why = ": " + condition.Message
		}
	}
	if !established {
		return c.fail("it is not established"+why, "wait some seconds, then see kubectl describe crd "+name, pageInstall)
	}
	if version := v1alpha1.GroupVersion.Version; !slices.ContainsFunc(live.Value.Spec.Versions,
		func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version && v.Served }) {
		return c.fail("the version "+version+" is not served", applyAgain, pageInstall)
	}
	return c.ok("")
}

func (f *Facts) available(c Check) Check {
	d := f.deployment()
	if d == nil {
		return c.fail(fmt.Sprintf("no Deployment in %s has the label app.kubernetes.io/name=%s", f.Namespace, operatorName),
			"install the operator, or name its namespace with --operator-namespace", pageInstall)
	}
	kubectl, wanted, status := "kubectl -n "+f.Namespace+" ", ptr.Deref(d.Spec.Replicas, 1), d.Status
	ready := fmt.Sprintf("%s: %d/%d replicas available, %d up to date", d.Name, status.AvailableReplicas, wanted, status.UpdatedReplicas)
	for _, condition := range status.Conditions {
		if condition.Type == appsv1.DeploymentReplicaFailure || condition.Status == corev1.ConditionFalse {
			ready += "; " + condition.Message
		}
	}
	switch {
	case wanted == 0:
		return c.fail(d.Name+" is scaled to 0: no release is recorded or verified, and releases of blocked workloads are denied",
			kubectl+"scale deployment "+d.Name+" --replicas=2", pageBreakGlass)
	case status.AvailableReplicas == 0:
		return c.fail(ready, kubectl+"describe pods; "+kubectl+"get events", pageDown)
	case status.ObservedGeneration < d.Generation || status.UpdatedReplicas < wanted || status.AvailableReplicas < wanted:
		return c.warn(ready, kubectl+"rollout status deployment/"+d.Name+"; "+kubectl+"describe pods",
			"tasks/respond-to-an-alert.md#altershieldreplicadown")
	case wanted == 1:
		return c.ok("%s, image %s; a second replica would replace it at once after a crash or a drain", ready, f.manager().Image)
	}
	return c.ok("%s, image %s", ready, f.manager().Image)
}

// livePods returns the manager's pods that are not being deleted.
func (f *Facts) livePods() []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(f.Pods.Value), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func (f *Facts) replicas(c Check) Check {
	var waiting []string
	for _, p := range f.livePods() {
		if ready := condition(&p, corev1.PodReady); ready == nil || ready.Status != corev1.ConditionTrue {
			waiting = append(waiting, p.Name+": "+trouble(&p))
		}
	}
	if len(waiting) == 0 {
		return c.ok("")
	}
	kubectl := "kubectl -n " + f.Namespace + " "
	return c.warn(strings.Join(waiting, "; "), kubectl+"describe pods; "+kubectl+"logs POD --previous", pageDown)
}

// condition returns a condition of a pod; nil if the pod has none of the type.
func condition(p *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == of })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

// trouble returns why a pod is not ready.
func trouble(p *corev1.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		switch {
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			return strings.TrimSuffix(s.State.Waiting.Reason+": "+s.State.Waiting.Message, ": ")
		case s.State.Terminated != nil:
			return "terminated: " + ending(s.State.Terminated)
		}
	}
	if scheduled := condition(p, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		return "not scheduled: " + scheduled.Message
	}
	return string(p.Status.Phase) + ", not ready"
}

// ending returns the reason of a termination, with the last line of the message.
func ending(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("%s (exit code %d)", cmp.Or(t.Reason, "terminated"), t.ExitCode)
	lines := strings.Split(strings.TrimSpace(t.Message), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		text += fmt.Sprintf(": %.200s", last)
	}
	return text
}

// restarts reports recent restarts with their reason: a manager without memory runs out of it again.
func (f *Facts) restarts(c Check) Check {
	remedy, page := fmt.Sprintf("kubectl -n %s logs POD --previous", f.Namespace), pageDown
	var ended []string
	for i := range f.Pods.Value {
		p := &f.Pods.Value[i]
		for _, s := range p.Status.ContainerStatuses {
			last := s.LastTerminationState.Terminated
			if last == nil || f.Now.Sub(last.FinishedAt.Time) > recent {
				continue
			}
			ended = append(ended, fmt.Sprintf("%s: restart %d was %s ago: %s", p.Name, s.RestartCount,
				f.Now.Sub(last.FinishedAt.Time).Round(time.Second), ending(last)))
			if last.Reason == "OOMKilled" {
				remedy, page = "raise the memory limit and GOMEMLIMIT together", "tasks/run-in-production.md#sizing"
			}
		}
	}
	if len(ended) > 0 {
		return c.warn(strings.Join(ended, "; "), remedy, page)
	}
	return c.ok("")
}

// versions compares the releases of operator and plugin.
func (f *Facts) versions(c Check) Check {
	operator, plugin := release(f.operatorVersion()), release(f.Plugin)
	switch {
	case operator == nil || plugin == nil:
		return c.skip("the operator's image is %s, the plugin's version %s: not both are releases",
			cmp.Or(f.operatorVersion(), "without a version"), cmp.Or(f.Plugin, "unknown"))
	case !operator.EqualTo(plugin):
		return c.warn(fmt.Sprintf("the operator is %s, the plugin %s", f.operatorVersion(), f.Plugin),
			"upgrade the older one; the plugin: kubectl krew upgrade altershield", pageUpgrade)
	}
	return c.ok("%s", f.operatorVersion())
}

// leader checks that a replica holds and renews the lease.
func (f *Facts) leader(c Check) Check {
	problem, spec := "has no holder", f.Lease.Value.Spec
	holder, _, _ := strings.Cut(ptr.Deref(spec.HolderIdentity, ""), "_")
	switch {
	case f.Lease.missing() && f.flag("leader-elect", "false") != "true":
		return c.ok("leader election is off, so only one replica may run")
	case f.Lease.missing():
		problem = "does not exist"
	case holder == "" || spec.RenewTime == nil:
	case f.LeaseRenewed:
		return c.ok("%s", holder)
	default:
		problem = fmt.Sprintf("of %s was renewed %s ago", holder, f.Now.Sub(spec.RenewTime.Time).Round(time.Second))
	}
	kubectl := "kubectl -n " + f.Namespace + " "
	return c.fail("the lease "+operatorName+" "+problem+", so no replica acts", "wait 20 seconds, then "+kubectl+"get lease "+operatorName+
		" -o yaml; "+kubectl+"logs -l control-plane=controller-manager --tail=-1 | grep leaderelection", pageLeader)
}

// server reports the replicas' condition ServerHealthy.
func (f *Facts) server(c Check) Check {
	var failed, unknown []string
	pods := f.livePods()
	for i := range pods {
		switch healthy := condition(&pods[i], v1alpha1.ConditionServerHealthy); {
		case healthy == nil:
			unknown = append(unknown, pods[i].Name)
		case healthy.Status == corev1.ConditionFalse:
			failed = append(failed, fmt.Sprintf("%s: %s: %s", pods[i].Name, healthy.Reason, healthy.Message))
		}
	}
	switch {
	case f.manager() == nil:
		return c.skip("the manager's Deployment is unknown")
	case f.flag("altershield-url", "") == "":
		return c.ok("no server is configured: the operator runs stand-alone")
	case len(failed) > 0:
		return c.fail(strings.Join(failed, "; "),
			"check the server, the network and the token; releases wait for verdicts until their deadlines", pageServerDown)
	case len(unknown) > 0:
		return c.warn("no result yet of "+strings.Join(unknown, ", "), "wait a minute, then read the manager's log", pageServerDown)
	case len(pods) == 0:
		return c.skip("there are no pods")
	}
	return c.ok("")
}
