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
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/traas-stack/altershield-operator/internal/certificates"
)

const (
	// lately is for how long a restart of the manager is told.
	lately = time.Hour
	// defaultLease is how long a lease counts that does not say.
	defaultLease = 15 * time.Second
	// maxHostname is how much of the name of a pod is its host name.
	maxHostname = 63

	pageDown   = "operations.md#altershielddown"
	pageLeader = "operations.md#altershieldnoleader"
)

func operatorChecks(f *Facts) []Check {
	namespace := operatorNamespace(f)
	if namespace.Status == Failed {
		return []Check{namespace}
	}
	checks := []Check{namespace, available(f)}
	if f.deployment() != nil {
		checks = append(checks, replicas(f), images(f), restarts(f), versions(f), leader(f), leaderClock(f), budget(f))
	}
	return checks
}

// absent says that there is no operator, of which nothing else is told then.
func (f *Facts) absent() bool { return f.NamespaceObject.missing() }

// outside says that the manager runs outside of the cluster, as those under development and
// in a demo do: there is no Deployment, and the webhooks call a URL.
func (f *Facts) outside() bool {
	return f.Deployments.readable() && f.deployment() == nil &&
		(f.Validating.readable() && certificates.ByURL(f.Validating.Value) || f.Mutating.readable() && certificates.ByURL(f.Mutating.Value))
}

const runsOutside = "the manager runs outside of the cluster, and its webhooks call a URL"

// servedElsewhere is the namespace in which the webhooks are served, where that is
// another one.
func (f *Facts) servedElsewhere() string {
	for _, read := range []Read[*unstructured.Unstructured]{f.Validating, f.Mutating} {
		if namespace := servedIn(read); namespace != "" && namespace != f.Namespace {
			return namespace
		}
	}
	return ""
}

func operatorNamespace(f *Facts) Check {
	c := newCheck("operator.namespace", "the operator's namespace is there")
	if c, unread := f.NamespaceObject.unread(c); unread {
		return c
	}
	if other := f.servedElsewhere(); f.absent() && other != "" {
		return c.fail(fmt.Sprintf("there is no namespace %s; the webhooks are served in %s", f.Namespace, other),
			"kubectl altershield check --operator-namespace="+other, pageCheck)
	}
	if f.absent() {
		return c.fail("there is no namespace "+f.Namespace,
			"install the operator, or say where it is with --operator-namespace", "operations.md#install-in-a-minute")
	}
	if f.NamespaceObject.Value.DeletionTimestamp != nil {
		return c.fail(f.Namespace+" is being deleted", "install the operator again when it is gone", "operations.md#install-in-a-minute")
	}
	return c.ok("it is %s", f.Namespace)
}

func available(f *Facts) Check {
	c := newCheck("operator.deployment", "the manager's Deployment is available")
	if c, unread := f.Deployments.unread(c); unread {
		return c
	}
	d := f.deployment()
	if d == nil && f.outside() {
		return c.skip(runsOutside)
	}
	if d == nil {
		return c.fail(fmt.Sprintf("no Deployment with the label app.kubernetes.io/name=%s in %s", operatorName, f.Namespace),
			"install the operator, or say where it is with --operator-namespace", "operations.md#install-in-a-minute")
	}
	in := fmt.Sprintf("kubectl -n %s ", f.Namespace)
	wanted := int32(1)
	if d.Spec.Replicas != nil {
		wanted = *d.Spec.Replicas
	}
	switch {
	case wanted == 0:
		return c.fail(d.Name+" is scaled to 0: nothing is recorded or verified, and releases of blocked workloads are refused",
			in+"scale deployment "+d.Name+" --replicas=2", "operations.md#break-the-glass")
	case d.Status.AvailableReplicas == 0:
		return c.fail(fmt.Sprintf("none of %s of %s is available%s", count(int(wanted), "replica"), d.Name, because(d)),
			in+"describe pods; "+in+"get events", pageDown)
	case d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas < wanted || d.Status.AvailableReplicas < wanted:
		return c.warn(fmt.Sprintf("%d of %s of %s are available, %d up to date%s",
			d.Status.AvailableReplicas, count(int(wanted), "replica"), d.Name, d.Status.UpdatedReplicas, because(d)),
			in+"rollout status deployment/"+d.Name+"; "+in+"describe pods", "operations.md#altershieldreplicadown")
	case wanted == 1:
		return c.ok("1 replica; with two, a crash or a drain leaves no time without the operator")
	}
	return c.ok("%s of %s", count(int(wanted), "replica"), d.Name)
}

// because says why a Deployment does not come up, where it says so itself.
func because(d *appsv1.Deployment) string {
	for _, condition := range d.Status.Conditions {
		if condition.Type == appsv1.DeploymentReplicaFailure && condition.Status == corev1.ConditionTrue {
			return ": " + condition.Message
		}
	}
	for _, condition := range d.Status.Conditions {
		if condition.Type == appsv1.DeploymentProgressing && condition.Status == corev1.ConditionFalse {
			return ": " + condition.Message
		}
	}
	return ""
}

// replicas tells of pods that are not ready, each with why.
func replicas(f *Facts) Check {
	c := newCheck("operator.replicas", "every replica is ready")
	if c, unread := f.Pods.unread(c); unread {
		return c
	}
	var waiting []string
	for i := range f.Pods.Value {
		if p := &f.Pods.Value[i]; p.DeletionTimestamp == nil && !ready(p) {
			waiting = append(waiting, p.Name+": "+trouble(p))
		}
	}
	if len(waiting) == 0 {
		return c.ok("")
	}
	return c.warn(strings.Join(waiting, "; "),
		fmt.Sprintf("kubectl -n %s describe pods; kubectl -n %s logs POD --previous", f.Namespace, f.Namespace), pageDown)
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// trouble says why a pod is not ready.
func trouble(p *corev1.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		switch {
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			return strings.TrimSuffix(s.State.Waiting.Reason+": "+s.State.Waiting.Message, ": ")
		case s.State.Terminated != nil:
			return "ended: " + ending(s.State.Terminated)
		}
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return "not scheduled: " + condition.Message
		}
	}
	if p.Status.Phase == corev1.PodRunning {
		return "runs, and is not ready"
	}
	return string(p.Status.Phase)
}

func ending(t *corev1.ContainerStateTerminated) string {
	said := fmt.Sprintf("%s, exit code %d", t.Reason, t.ExitCode)
	if message := lastLine(t.Message); message != "" {
		said += ": " + message
	}
	return strings.TrimPrefix(said, ", ")
}

// lastLine of a log says why a program ended.
func lastLine(text string) string {
	const most = 200
	lines := strings.Split(strings.TrimSpace(text), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	if len(line) > most {
		line = line[:most] + "…"
	}
	return line
}

// images tells of replicas that run another image than the others.
func images(f *Facts) Check {
	c := newCheck("operator.images", "all replicas run one image")
	if c, unread := f.Pods.unread(c); unread {
		return c
	}
	running := map[string]bool{}
	for i := range f.Pods.Value {
		if p := &f.Pods.Value[i]; p.DeletionTimestamp == nil && len(p.Spec.Containers) > 0 {
			running[containerOf(&p.Spec).Image] = true
		}
	}
	found := slices.Sorted(maps.Keys(running))
	switch len(found) {
	case 0:
		return c.skip("there are no pods")
	case 1:
		return c.ok("%s", found[0])
	default:
		return c.warn(strings.Join(found, " and "), fmt.Sprintf("wait for the rollout: kubectl -n %s rollout status deployment/%s", f.Namespace, f.deployment().Name),
			"operations.md#upgrade")
	}
}

// restarts tells of managers that ended lately, and why: one that runs out of memory
// does so again.
func restarts(f *Facts) Check {
	c := newCheck("operator.restarts", "no replica restarted in the last hour")
	if c, unread := f.Pods.unread(c); unread {
		return c
	}
	remedy, page := fmt.Sprintf("kubectl -n %s logs POD --previous", f.Namespace), pageDown
	var ended []string
	for i := range f.Pods.Value {
		p := &f.Pods.Value[i]
		for _, s := range p.Status.ContainerStatuses {
			last := s.LastTerminationState.Terminated
			if s.RestartCount == 0 || last == nil || f.now().Sub(last.FinishedAt.Time) > lately {
				continue
			}
			ended = append(ended, fmt.Sprintf("%s: %s, the last one %s ago: %s", p.Name, count(int(s.RestartCount), "restart"),
				f.now().Sub(last.FinishedAt.Time).Round(time.Second), ending(last)))
			if last.Reason == "OOMKilled" {
				remedy, page = "raise the memory limit and GOMEMLIMIT together", "operations.md#sizing"
			}
		}
	}
	if len(ended) > 0 {
		return c.warn(strings.Join(ended, "; "), remedy, page)
	}
	return c.ok("")
}

// now is the time by the API server's clock, as far as it is known.
func (f *Facts) now() time.Time {
	if f.ServerNow.IsZero() {
		return f.LocalNow
	}
	return f.ServerNow
}

// versions compares operator and plugin.
func versions(f *Facts) Check {
	c := newCheck("operator.version", "operator and plugin are of one version")
	operator, plugin, ok := f.compared()
	switch {
	case !ok:
		return c.skip("the operator's image is %s, the plugin's version %s: not both are releases",
			orNone(f.operatorVersion()), orNone(f.Plugin))
	case operator.LessThan(plugin):
		return c.warn(fmt.Sprintf("the operator is %s, the plugin %s", f.operatorVersion(), f.Plugin),
			"upgrade the operator", "operations.md#upgrade")
	case plugin.LessThan(operator):
		return c.warn(fmt.Sprintf("the operator is %s, the plugin %s", f.operatorVersion(), f.Plugin),
			"upgrade the plugin: kubectl krew upgrade altershield", "operations.md#upgrade")
	}
	return c.ok("%s", f.operatorVersion())
}

func orNone(text string) string {
	if text == "" {
		return "without a version"
	}
	return text
}

// leader says whether a replica decides.
func leader(f *Facts) Check {
	c := newCheck("operator.leader", "a replica leads")
	if c, unread := f.Lease.unread(c); unread {
		return c
	}
	look := fmt.Sprintf("kubectl -n %s get lease %s -o yaml; kubectl -n %s logs -l control-plane=controller-manager --tail=-1 | grep leaderelection",
		f.Namespace, leaseName, f.Namespace)
	if f.Lease.missing() {
		if f.flag("leader-elect", "false") != "true" {
			return c.ok("it runs without leader election, for which only one replica may run")
		}
		return c.fail("the lease "+leaseName+" is not there: nobody decides", look, pageLeader)
	}
	lease := f.Lease.Value
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return c.fail("nobody holds the lease "+leaseName, "wait 20 seconds; "+look, pageLeader)
	}
	holder, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	age := f.leaseAge()
	if age > 2*leaseDuration(lease) && !f.LeaseRenewed {
		return c.fail(fmt.Sprintf("the lease of %s was last renewed %s ago: nobody decides", holder, age.Round(time.Second)),
			look, pageLeader)
	}
	if f.Pods.Err != nil {
		return c.ok("%s", holder)
	}
	for i := range f.Pods.Value {
		p := &f.Pods.Value[i]
		if !isHost(p, holder) {
			continue
		}
		if !ready(p) {
			return c.warn(p.Name+" leads and is not ready: "+trouble(p),
				fmt.Sprintf("kubectl -n %s logs %s", f.Namespace, p.Name), pageDown)
		}
		return c.ok("%s", p.Name)
	}
	return c.fail(holder+" holds the lease, and is none of the operator's pods: another manager decides, or its pod is gone",
		"wait 20 seconds; end the manager that runs elsewhere; "+look, pageLeader)
}

// isHost says that a program in a pod sees this as the name of its machine.
func isHost(p *corev1.Pod, host string) bool {
	if p.Spec.HostNetwork {
		return p.Spec.NodeName == host || strings.HasPrefix(p.Spec.NodeName, host+".")
	}
	if p.Spec.Hostname != "" {
		return p.Spec.Hostname == host
	}
	name := p.Name
	if len(name) > maxHostname {
		name = strings.TrimRight(name[:maxHostname], "-.")
	}
	return name == host
}

// leaseAge is how long ago the lease was renewed, by the API server's clock and its
// holder's.
func (f *Facts) leaseAge() time.Duration {
	if f.Lease.Value.Spec.RenewTime == nil {
		return time.Duration(1<<63 - 1)
	}
	return f.LeaseAt.Sub(f.Lease.Value.Spec.RenewTime.Time)
}

func leaseDuration(lease *coordinationv1.Lease) time.Duration {
	if lease.Spec.LeaseDurationSeconds == nil {
		return defaultLease
	}
	return time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
}

// leaderClock compares the clock of the leader, which the lease shows, with the API
// server's.
func leaderClock(f *Facts) Check {
	c := newCheck("operator.clock", "the clock of the leader agrees with the API server's")
	if c, unread := f.Lease.unread(c); unread {
		return c
	}
	if f.Lease.missing() || f.Lease.Value.Spec.RenewTime == nil || f.ServerNow.IsZero() {
		return c.skip("there is no lease to tell it by")
	}
	age := f.leaseAge()
	// A lease is renewed every two seconds.
	behind := age > mostSkew+2*time.Second && f.LeaseRenewed
	if age < -mostSkew || behind {
		return c.warn("the leader's is "+apart(-age), "set the clocks of the nodes by NTP; the operator's times follow the API server, but certificates and probes do not",
			pageCheck)
	}
	if age > 2*leaseDuration(f.Lease.Value) {
		return c.skip("the lease is not renewed")
	}
	return c.ok("")
}

// budget says whether nodes are drained one replica at a time.
func budget(f *Facts) Check {
	c := newCheck("operator.budget", "a disruption budget keeps a replica while nodes are drained")
	if c, unread := f.Budgets.unread(c); unread {
		return c
	}
	template := labels.Set(f.deployment().Spec.Template.Labels)
	for i := range f.Budgets.Value {
		b := &f.Budgets.Value[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() || !selector.Matches(template) {
			continue
		}
		replicas := f.deployment().Spec.Replicas
		if b.Status.DisruptionsAllowed == 0 && b.Status.CurrentHealthy > 0 && b.Status.ObservedGeneration == b.Generation &&
			b.Status.CurrentHealthy >= b.Status.ExpectedPods && replicas != nil && *replicas > 0 {
			return c.warn(b.Name+" allows no eviction although all replicas are healthy, so nodes cannot be drained",
				applyAgain, "operations.md#high-availability")
		}
		return c.ok("%s", b.Name)
	}
	return c.warn("no PodDisruptionBudget selects the replicas", applyAgain, "operations.md#high-availability")
}
