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

package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// readEvery is the time from one reading of the cache to the next.
const readEvery = 10 * time.Second

// Notifier sends the alerts of all policies. It runs on the leader only.
type Notifier struct {
	*cluster.Cluster
	// Send posts alerts to an endpoint.
	Send func(ctx context.Context, e *v1alpha1.DefenseEndpoint, alerts []byte) error

	// sent has a memory for each endpoint that exists.
	sent map[string]memory
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (n *Notifier) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (n *Notifier) Start(ctx context.Context) error {
	n.sent = map[string]memory{}
	wait.UntilWithContext(ctx, n.Notify, readEvery)
	return nil
}

// Notify sends the alerts that are due. Without a complete reading it sends nothing, because alerts would seem to be over.
func (n *Notifier) Notify(ctx context.Context) {
	var list v1alpha1.DefenseEndpointList
	err := n.Cached.List(ctx, &list, client.InNamespace(n.Operator))
	var wanted map[string][]Alert
	if err == nil {
		wanted, err = n.wanted(ctx, list.Items)
	}
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		log.FromContext(ctx).Error(err, "read the alerts of policies")
		return
	}
	maps.DeleteFunc(n.sent, func(name string, _ memory) bool {
		return !slices.ContainsFunc(list.Items, func(e v1alpha1.DefenseEndpoint) bool { return e.Name == name })
	})
	var all sync.WaitGroup
	for i := range list.Items {
		e := &list.Items[i]
		if n.sent[e.Name] == nil {
			n.sent[e.Name] = memory{}
		}
		m := n.sent[e.Name]
		all.Go(func() { n.send(ctx, e, m, wanted[e.Name]) })
	}
	all.Wait()
}

// send sends the alerts to one endpoint that are due. A failed send is repeated at the next reading; the metric and the
// condition of the endpoint report it.
func (n *Notifier) send(ctx context.Context, e *v1alpha1.DefenseEndpoint, m memory, wanted []Alert) {
	now := n.Clock.Now()
	due, dropped := m.due(wanted, now)
	metrics.Notified(metrics.NotificationDropped, dropped)
	if len(due) == 0 {
		return
	}
	body, err := json.Marshal(due)
	if err == nil {
		err = n.Send(ctx, e, body)
	}
	if err != nil {
		metrics.Notified(metrics.NotificationFailed, len(due))
		log.FromContext(ctx).V(1).Info("alerts were not sent", "defenseendpoint", e.Name, "alerts", len(due), "error", err.Error())
		return
	}
	m.took(due, now)
	metrics.Notified(metrics.NotificationSent, len(due))
}

// wanted returns the alerts of each endpoint, and writes to each policy whether its endpoints can get them.
func (n *Notifier) wanted(ctx context.Context, endpoints []v1alpha1.DefenseEndpoint) (map[string][]Alert, error) {
	var list v1alpha1.DefensePolicyList
	if err := n.Cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list defensepolicies: %w", err)
	}
	asked := false
	for i := range list.Items {
		p := &list.Items[i]
		asked = asked || len(p.Spec.Notify) > 0 || p.Status.InForce != nil && len(p.Status.InForce.Notify) > 0
		if err := n.report(ctx, p, endpoints); err != nil {
			return nil, err
		}
	}
	wanted := map[string][]Alert{}
	if !asked {
		return wanted, nil
	}
	now := n.Clock.Now()
	keys, checks := n.find(ctx, func(at time.Time) bool { return now.Sub(at) < momentLasts })
	for key := range keys {
		in, err := n.load(ctx, key, endpoints)
		if err != nil {
			return nil, err
		}
		in.Checks, in.Now = checks, now
		for _, a := range Alerts(in) {
			wanted[a.Endpoint] = append(wanted[a.Endpoint], a)
		}
	}
	return wanted, nil
}

// find returns the workloads that may have alerts, and the checks of batches with a failure in observe mode, by
// the UID of the release.
func (n *Notifier) find(ctx context.Context, isNew func(time.Time) bool) (map[workload.Key]bool, map[types.UID][]v1alpha1.CheckStatus) {
	keys, checks := map[workload.Key]bool{}, map[types.UID][]v1alpha1.CheckStatus{}
	failed := func(c v1alpha1.CheckStatus) bool { return failedObserving(&c) && isNew(c.CompletionTime.Time) }
	cluster.RequestsBy(ctx, n.View, &v1alpha1.ChangePodList{}, func(b *v1alpha1.ChangePod) (none struct{}, _ bool) {
		if by := metav1.GetControllerOf(b); by != nil && slices.ContainsFunc(b.Status.Checks, failed) {
			checks[by.UID] = append(checks[by.UID], b.Status.Checks...)
		}
		return none, false
	})
	for _, key := range n.Workloads(ctx, func(o client.Object) bool {
		_, blocked := o.GetLabels()[v1alpha1.SuspendLabel]
		return blocked
	}) {
		keys[key] = true
	}
	cluster.RequestsBy(ctx, n.View, &v1alpha1.ChangeWorkloadList{}, func(c *v1alpha1.ChangeWorkload) (none struct{}, _ bool) {
		if owner, ok := n.Kinds.OwnerOf(c); ok && (c.Status.Status == v1alpha1.ChangeWorkloadSuspend ||
			isNew(time.Unix(c.Status.DecidedTimeUnix, 0)) || len(checks[c.UID]) > 0 || slices.ContainsFunc(c.Status.Checks, failed)) {
			keys[owner.Key] = true
		}
		return none, false
	})
	return keys, checks
}

// load reads a workload with its releases, and the endpoints to notify; none if it is not defended.
func (n *Notifier) load(ctx context.Context, key workload.Key, endpoints []v1alpha1.DefenseEndpoint) (in Input, err error) {
	ns, err := n.Namespace(ctx, key.Namespace)
	if err != nil || !ns.Enrolled {
		return in, err
	}
	in.Workload, err = n.Summary(ctx, key)
	if err != nil || in.Workload == nil || in.Workload.Deleting || workload.OptedOut(in.Workload.Labels) {
		return in, err
	}
	policies, of, err := n.PoliciesFor(ctx, in.Workload)
	if err != nil {
		return in, err
	}
	for _, to := range policy.Select(policies, n.Operator, of).Notify {
		// A policy is of the workload's namespace, or of the operator's, which may use every endpoint.
		if problem(to.Namespace, of.NamespaceLabels, to.EndpointRef.Name, endpoints) != v1alpha1.ReasonNoEndpoint {
			in.Notify = append(in.Notify, to)
		}
	}
	in.Releases, err = n.Releases(ctx, key.Namespace, in.Workload.UID)
	in.Current = cluster.CurrentRelease(in.Workload, in.Releases)
	return in, err
}

// problem returns why policies of a namespace cannot notify an endpoint, as a reason of the condition Notifies; empty if
// they can.
func problem(namespace string, labels map[string]string, name string, endpoints []v1alpha1.DefenseEndpoint) (reason string) {
	i := slices.IndexFunc(endpoints, func(e v1alpha1.DefenseEndpoint) bool { return e.Name == name })
	switch {
	case i < 0 || endpoints[i].Spec.Type != v1alpha1.EndpointAlertmanager || !endpoint.Allows(&endpoints[i], namespace, labels):
		return v1alpha1.ReasonNoEndpoint
	case !meta.IsStatusConditionTrue(endpoints[i].Status.Conditions, v1alpha1.ConditionReachable):
		return v1alpha1.ReasonUnavailable
	default:
		return ""
	}
}

// report writes the condition Notifies of a policy if it changed. It is for users: nothing depends on it.
func (n *Notifier) report(ctx context.Context, p *v1alpha1.DefensePolicy, endpoints []v1alpha1.DefenseEndpoint) error {
	if len(p.Spec.Notify) == 0 && meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionNotifies) == nil {
		return nil
	}
	ns, err := n.Namespace(ctx, p.Namespace)
	if err != nil || !ns.Enrolled && p.Namespace != n.Operator || ns.Ending() {
		return err
	}
	is := metav1.Condition{
		Type: v1alpha1.ConditionNotifies, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonConfigured,
		ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(n.Clock.Now()),
	}
	for i, to := range p.Spec.Notify {
		if reason := problem(p.Namespace, ns.Meta.Labels, to.EndpointRef.Name, endpoints); reason != "" {
			is.Status, is.Reason = metav1.ConditionFalse, reason
			is.Message = fmt.Sprintf("spec.notify[%d].endpointRef: %s", i, to.EndpointRef.Name)
			break
		}
	}
	updated := p.DeepCopy()
	changed := false
	if len(p.Spec.Notify) == 0 {
		changed = meta.RemoveStatusCondition(&updated.Status.Conditions, v1alpha1.ConditionNotifies)
	} else {
		changed = v1alpha1.SetCondition("DefensePolicy", &updated.Status.Conditions, is)
	}
	if changed {
		err = n.Client.Status().Update(ctx, updated)
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		log.FromContext(ctx).Error(err, "write whether a policy can notify its endpoints", "defensepolicy", p.Namespace+"/"+p.Name)
	}
	return nil
}
