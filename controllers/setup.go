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

// Package controllers has the reconcilers, one file per kind. Each reads objects, lets
// internal/defense and the packages below it decide, and carries the plan out.
package controllers

import (
	"context"
	"fmt"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/notify"
	"github.com/traas-stack/altershield-operator/internal/verify"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Options configure the controllers.
type Options struct {
	// Server is AlterShield Server; nil without one.
	Server *verify.Server
	// Spread spreads the tries of calls to the server, by a number from 0 up to 1; random if nil.
	Spread func() float64
	// MetricsTogether counts all namespaces in one series instead of one series for each.
	MetricsTogether bool
	// Guard refuses addresses that no probe may call.
	Guard checks.Guard
	// Clients call endpoints.
	Clients *endpoint.Clients
	// Interceptor writes the webhooks of declared kinds; nil without webhooks.
	Interceptor Interceptor
}

// beginMetrics begins the series of each kind, and registers the metrics that are counted at each
// scrape.
func beginMetrics(ctx context.Context, v cluster.View, byNamespace bool) error {
	var kinds []string
	for _, kind := range v.Kinds.Fixed() {
		kinds = append(kinds, workload.LabelOf(kind.GroupVersionKind().GroupKind()))
	}
	v.Kinds.Subscribe(func(added, removed []workload.Kind) {
		for _, kind := range removed {
			if gk := kind.GroupVersionKind().GroupKind(); !slices.ContainsFunc(added, func(k workload.Kind) bool {
				return k.GroupVersionKind().GroupKind() == gk
			}) {
				metrics.End(workload.LabelOf(gk))
			}
		}
		for _, kind := range added {
			metrics.Begin(workload.LabelOf(kind.GroupVersionKind().GroupKind()))
		}
	})
	blocked := func() (map[metrics.Of]int, error) { return blockedWorkloads(ctx, v) }
	if err := metrics.BlockedWorkloads(kinds, blocked, byNamespace); err != nil {
		return fmt.Errorf("register the metric of blocked workloads: %w", err)
	}
	held := func() (map[metrics.Of]int, error) { return heldWorkloads(ctx, v) }
	if err := metrics.HeldWorkloads(kinds, held, byNamespace); err != nil {
		return fmt.Errorf("register the metric of held workloads: %w", err)
	}
	metrics.ChangeKinds(func() (map[metrics.Condition]int, error) { return countChangeKinds(ctx, v) })
	metrics.PolicyChecks(func() (map[string][]string, error) { return checksOfPolicies(ctx, v) })
	return nil
}

// Setup adds all controllers to the manager.
func Setup(ctx context.Context, mgr ctrl.Manager, c *cluster.Cluster, o Options) error {
	if err := fillCaches(ctx, mgr, c.Kinds); err != nil {
		return err
	}
	if err := beginMetrics(ctx, c.View, !o.MetricsTogether); err != nil {
		return err
	}
	_, clusterUID := o.Server.Connection()
	server, batchWorkers := verify.NewAlterShield(c, o.Server, o.Spread), workers
	if o.Server != nil {
		batchWorkers = verify.Workers
	}
	// Batches and releases share the limits of this provider.
	policies := checks.New(c, o.Guard, o.Clients)
	if err := mgr.Add(policies); err != nil {
		return fmt.Errorf("add the calls of probes and queries: %w", err)
	}
	if err := mgr.Add(&notify.Notifier{Cluster: c, Send: o.Clients.Send}); err != nil {
		return fmt.Errorf("add the alerts of policies: %w", err)
	}
	setups := map[string]func(ctrl.Manager) error{
		"workload":       newWorkloadReconciler(c, clusterUID != "").SetupWithManager,
		"pod":            (&PodReconciler{Cluster: c}).SetupWithManager,
		"changeworkload": newChangeWorkloadReconciler(c, clusterUID).SetupWithManager,
		"changepod":      newChangePodReconciler(c, batchWorkers, server, policies).SetupWithManager,
		"releasecheck":   newReleaseCheckReconciler(c, policies).SetupWithManager,
		"defensepolicy":  (&DefensePolicyReconciler{Cluster: c}).SetupWithManager,
		"endpoint":       (&DefenseEndpointReconciler{Cluster: c, clients: o.Clients}).SetupWithManager,
		"queries":        (&PolicyQueriesReconciler{Cluster: c, try: policies.Try}).SetupWithManager,
		"opsconfiginfo":  (&OpsConfigInfoReconciler{Cluster: c, started: c.Clock.Now()}).SetupWithManager,
	}
	if o.Server != nil {
		setups["order"] = newOrderReconciler(c, server).SetupWithManager
		setups["order-end"] = (&OrderEndReconciler{Cluster: c, server: server}).SetupWithManager
	}
	if c.Hub != nil {
		kinds, err := newChangeKindReconciler(c, mgr, o.Interceptor)
		if err != nil {
			return err
		}
		setups["changekind"] = kinds.SetupWithManager
	}
	for name, setup := range setups {
		if err := setup(mgr); err != nil {
			return fmt.Errorf("set up the %s controller: %w", name, err)
		}
	}
	return nil
}
