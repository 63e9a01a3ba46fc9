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

package checks

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/slots"
)

// review makes one step of a check of type service. The ID of the call is in the status before the call.
func (p *querier) review(
	ctx context.Context, s *Subject, of *policy.Check, c *v1alpha1.CheckStatus,
) (next v1alpha1.CheckStatus, after time.Duration, err error) {
	known, in, busy := p.take(s, of, c)
	if busy {
		return p.late(c), resultsEvery, nil
	}
	if d := known.decided; in.Answer == nil && d != nil && d.Phase != c.Phase {
		return *d, 0, nil // another answer could be another verdict
	}
	if c.CallID == "" || c.Generation != of.Generation {
		in.Status.CallID = callID(s, of)
		return in.Status, 0, nil
	}
	plan := decideService(in)
	if !plan.Ask.IsZero() {
		e, refused, err := EndpointFor(ctx, p.view, v1alpha1.EndpointHTTP, of.Service.EndpointRef.Name, of.IsOf(p.view.Operator),
			s.Release.Namespace)
		if err != nil {
			return next, 0, err
		}
		request, pods, err := p.request(ctx, s, of, &in.Status)
		switch {
		case err != nil:
			return next, 0, err
		case request == nil:
			return withoutPods(plan.Status), 0, nil
		case refused != "":
			in.Answer = &queryAnswer{Reason: v1alpha1.ReasonNoEndpoint, Message: refused, Ended: in.Now}
			plan = decideService(in)
		default:
			plan.After = resultsEvery
			p.beside(ctx, known, s, func(ctx context.Context, work slots.Work) *queryAnswer {
				return p.post(ctx, of, e, work, c.CallID, request, pods)
			})
		}
	}
	if in.Answer != nil && plan.Status.Phase != v1alpha1.CheckWatching {
		known.decided = plan.Status.DeepCopy()
	}
	next, after = p.settle(known, c, in, plan)
	return next, after, nil
}

// request returns the body of a request, and the names of the pods that the answer may name; no body if no pod of the batch is left.
func (p *querier) request(
	ctx context.Context, s *Subject, of *policy.Check, c *v1alpha1.CheckStatus,
) (body []byte, names []string, err error) {
	pods, err := podsOf(ctx, p.view, s)
	if err != nil {
		return nil, nil, err
	}
	about := []map[string]any{}
	for i := range pods {
		if pod := &pods[i]; !isGone(pod) && len(about) < maxReviewed {
			about = append(about, map[string]any{"name": pod.Name, "uid": pod.UID, "ip": pod.IP, "node": pod.Node})
			names = append(names, pod.Name)
		}
	}
	if s.Batch != nil {
		if len(about) == 0 {
			return nil, nil, nil
		}
		names = nil // the service may have been asked about pods that have gone since
		for i := range s.Batch.Spec.PodInfos {
			names = append(names, s.Batch.Spec.PodInfos[i].Pod)
		}
	}
	parameters := maps.Collect(maps.All(of.Service.Parameters)) // never null
	if of.Service.Protocol == v1alpha1.ServiceJSON {
		body, err = json.Marshal(parameters)
		return body, names, err
	}
	old, err := p.view.OldPods(ctx, s.Workload)
	if err != nil {
		return nil, nil, err
	}
	_, previous, err := p.view.OldTemplate(ctx, s.Workload)
	if err != nil {
		return nil, nil, err
	}
	oldNames := append([]string{}, namesOf(old)...)
	stage := v1alpha1.StagePost
	if c.Stage == v1alpha1.StageReleasePre || c.Stage == v1alpha1.StageBatchPre {
		stage = v1alpha1.StagePre
	}
	release := map[string]any{
		"namespace": s.Workload.Namespace, "workload": map[string]string{"kind": s.Workload.GVK.Kind, "name": s.Workload.Name},
		"version": s.Release.Spec.Reversion, "previousVersion": previous, "attempt": s.Release.Status.Attempt,
		"changeStartTime": time.Unix(s.Release.Status.StartTimeUnix, 0).UTC(),
	}
	if s.Batch != nil {
		number := record.BatchNumber(s.Batch)
		release["batchNo"], release["totalBatchNum"], release["lastBatch"] = number, max(s.Batch.Spec.TotalBatches, number), s.Batch.Spec.Last
	}
	body, err = json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "CheckReview", "id": c.CallID, "changeOrderId": s.Release.Status.OrderID,
		"defenseStage": stage, "check": of.Name, "release": release, "pods": about, "oldPods": oldNames[:min(len(oldNames), maxReviewed)],
		"parameters": parameters, "deadline": timeOf(c.Deadline).UTC(),
	})
	return body, names, err
}

// post makes one call of a service, and reads its answer.
func (p *querier) post(
	ctx context.Context, of *policy.Check, e *v1alpha1.DefenseEndpoint, work slots.Work, id string, request []byte, pods []string,
) (answer *queryAnswer) {
	defer caught(ctx, e, &answer)
	got, err := p.clients.Post(ctx, e, work, id, request, of.Timeout)
	if err != nil {
		return unanswered(e, err)
	}
	r, problem := readReview(got, id, pods)
	polls := of.Service.Invoke == v1alpha1.ServicePolling
	if of.Service.Protocol == v1alpha1.ServiceJSON && (got.Status != http.StatusAccepted || !polls) {
		r, problem = p.readJSON(ctx, of, got)
	}
	if problem == "" && r.Verdict == verdictRunning && !polls {
		problem = "it is not finished, and is not asked again: set invoke to Polling"
	}
	name := "endpoint " + e.Name + ": "
	if problem != "" {
		return &queryAnswer{Reason: v1alpha1.ReasonInvalidAnswer, Message: name + problem}
	}
	r.Message = name + joined(": ", r.Verdict, r.Message)
	return &queryAnswer{Service: r}
}

// readJSON evaluates failWhen for an answer.
func (p *querier) readJSON(ctx context.Context, of *policy.Check, answer endpoint.Answer) (r serviceResult, problem string) {
	in := rules.Input{Status: answer.Status}
	if json.Unmarshal(answer.Body, &in.Body) != nil {
		return r, "its answer is not JSON"
	}
	program, problem, err := rules.Compile(ctx, rules.Threshold(of.Service.FailWhen), rules.OfAnswer, of.IsOf(p.view.Operator))
	var isFalse []rules.Failure
	if err == nil && problem == "" {
		isFalse, err = p.watch.Evaluate(ctx, of.Rules(p.view.Operator), program, in, func() {})
	}
	if err != nil {
		problem = oneLine(err)
	}
	r = serviceResult{Verdict: record.VerdictFail, Message: fmt.Sprintf("HTTP %d, %s is true", answer.Status, of.Service.FailWhen)}
	switch {
	case problem != "":
		problem = "failWhen cannot be evaluated: " + strings.TrimPrefix(problem, "rules[0]: ")
	case len(isFalse) > 0:
		r = serviceResult{Verdict: record.VerdictPass, Message: fmt.Sprintf("HTTP %d, failWhen is false", answer.Status)}
	}
	return r, problem
}
