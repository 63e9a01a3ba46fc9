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

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

// TestServerFailsTheBatch checks that one batch of a pod fails, once, and that the journal is on disk.
func TestServerFailsTheBatch(t *testing.T) {
	operator := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"success":true}`)
	}))
	defer operator.Close()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "altershield-token"), []byte("of an earlier demo"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := startServer(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.stop() }()
	if info, err := os.Stat(s.tokenFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("token file: mode %v, error %v", info.Mode(), err)
	}
	s.SetCallbackURLs(operator.URL)
	client, err := altershield.New(altershield.Options{
		URL: s.URL(), Platform: altershield.DefaultPlatform, Tokens: altershield.NewTokenFile(s.tokenFile, clock.RealClock{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	release(ctx, t, s, client, "first", "pod")
	s.FailNext("", "^pod-2$")
	release(ctx, t, s, client, "second", "pod")
	release(ctx, t, s, client, "third", "pod")
	release(ctx, t, s, client, "fourth", unlucky+"one")
	if err := s.Show(ctx, "nothing", `batch 2/2 POST: fail \(error rate`); err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(s.lines, regexp.MustCompile(`first`).MatchString) {
		t.Errorf("the journal since FailNext:\n%s", strings.Join(s.lines, "\n"))
	}
	var failed []string
	for _, e := range s.Journal().Callbacks() {
		if e.Callback != nil && !e.Callback.Request.Verdict.Passes() {
			failed = append(failed, e.Order+": "+e.Callback.Request.Verdict.Explanation())
		}
	}
	want := "second: error rate: 5xx above 1 %\n" +
		"fourth: luck: the pod is called unlucky-...\nfourth: luck: the pod is called unlucky-..."
	if got := strings.Join(failed, "\n"); got != want {
		t.Errorf("failures:\n%s\nwant\n%s", got, want)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	written, err := os.ReadFile(s.logPath)
	if err != nil || !strings.Contains(string(written), "batch 2/2 POST: fail (error rate: 5xx above 1 %)") {
		t.Errorf("journal on disk: error %v\n%s", err, written)
	}
}

// release submits an order and its two batches, and waits for their callbacks.
func release(ctx context.Context, t *testing.T, s *server, client *altershield.Client, order, pod string) {
	t.Helper()
	base := altershield.Base{TenantCode: altershield.DefaultTenant, ChangeSceneKey: altershield.DefaultScene, BizExecOrderID: order}
	if _, err := client.SubmitOrder(ctx, altershield.SubmitOrderRequest{Base: base, Order: altershield.Order{
		ChangeTitle: "release", Creator: "jane", ChangeScenarioCode: altershield.ScenarioDefault, ChangePhases: []string{altershield.PhaseProd},
		ChangeContents: []altershield.ChangeContent{
			{ContentType: altershield.ContentType{TypeName: altershield.DefaultTargetType}, InstanceName: "web"},
		},
		ChangeParamJSON: "{}",
	}}); err != nil {
		t.Fatal(err)
	}
	for number := range 2 {
		callbacks := func(want int) {
			t.Helper()
			if err := s.WaitFor(ctx, func(j simulator.Journal) bool {
				ended := j.Of(order).Callbacks().Filter(func(e simulator.Entry) bool { return e.Outcome != simulator.OutcomePending })
				return len(ended) == 2*number+want
			}); err != nil {
				t.Fatal(err)
			}
		}
		tag := altershield.BatchTag(number == 1)
		node, err := client.StartBatch(ctx, altershield.StartBatchRequest{
			Base: base, Start: altershield.Start{Executor: "jane"}, BatchNo: number, TotalBatchNum: 2, TotalBatchNumInChangePhase: 2,
			IsLastBatchTag: tag, IsLastBatchInChangePhaseTag: tag, ChangePhase: altershield.PhaseProd,
			EffectiveTargetType: altershield.DefaultTargetType, EffectiveTargetLocations: []string{fmt.Sprintf("%s-%d", pod, number+1)},
		})
		if err != nil {
			t.Fatal(err)
		}
		callbacks(1)
		if _, err := client.FinishNode(ctx, altershield.FinishNodeRequest{Base: base, NodeID: node.NodeID, Success: true}); err != nil {
			t.Fatal(err)
		}
		callbacks(2)
	}
}
