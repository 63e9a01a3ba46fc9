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

package bench

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

// settled is the time until all Deployments are rolled out and wait for their verdicts.
const settled = 10 * time.Second

// BenchmarkVerdict measures the time from a failing verdict of the server to the stored block: 50 Deployments are rolled out, and
// the server sends 20 verdicts a second.
func BenchmarkVerdict(b *testing.B) {
	t := newBed(b, true)
	ctx := b.Context()
	var took []time.Duration
	for b.Loop() {
		t.server.ClearScripts()
		t.server.ClearJournal()
		ns := t.namespace(b, true)
		for i := range deployments {
			t.server.Script(simulator.Script{
				Match: simulator.Match{
					Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost,
					Location: regexp.MustCompile(fmt.Sprintf("^d%02d-", i)),
				},
				Verdict: altershield.VerdictFail, Delay: settled + time.Duration(i)*time.Second/20,
			})
		}
		var list appsv1.DeploymentList
		watch, err := t.api.Watch(ctx, &list, client.InNamespace(ns))
		must(b, err)
		for i := range deployments {
			t.create(b, ns, i, 1)
		}
		blocked := map[string]time.Time{}
		deadline := time.After(patience)
		for len(blocked) < deployments {
			select {
			case e := <-watch.ResultChan():
				d, ok := e.Object.(*appsv1.Deployment)
				if !ok {
					b.Fatalf("the watch ended: %v", e.Object)
				}
				if _, seen := blocked[d.Name]; !seen && d.Labels[v1alpha1.SuspendLabel] != "" {
					blocked[d.Name] = time.Now()
				}
			case <-deadline:
				b.Fatalf("%d of %d Deployments are blocked", len(blocked), deployments)
			}
		}
		watch.Stop()
		took = append(took, latencies(b, t.server.Journal(), blocked)...)
	}
	reportQuantiles(b, took)
}

// latencies pairs each block with the first failing verdict sent for it.
func latencies(b *testing.B, journal simulator.Journal, blocked map[string]time.Time) []time.Duration {
	b.Helper()
	workloads, first := map[string]string{}, map[string]time.Time{}
	for _, e := range journal.Requests(altershield.ActionSubmitOrder) {
		var r altershield.SubmitOrderRequest
		must(b, e.Decode(&r))
		if len(r.ChangeApps) == 1 {
			workloads[e.Order] = r.ChangeApps[0]
		}
	}
	for _, e := range journal.Callbacks() {
		name := workloads[e.Order]
		if _, seen := first[name]; !seen && e.Callback.Request.Verdict.Verdict == altershield.VerdictFail {
			first[name] = e.Time
		}
	}
	var took []time.Duration
	for name, at := range blocked {
		sent, ok := first[name]
		if !ok {
			b.Fatalf("%s is blocked without a failing verdict", name)
		}
		took = append(took, at.Sub(sent))
	}
	return took
}
