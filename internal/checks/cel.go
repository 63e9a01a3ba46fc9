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
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// maxRemembered is the number of checks by rules that are remembered. A forgotten check is
	// evaluated once more.
	maxRemembered = 8192
	// podReads is the number of concurrent reads of pods of a batch.
	podReads = 8
	// maxRead bounds the memory that the pods of a batch take, in bytes.
	maxRead = 32 << 20
	// maxEvaluations run at a time, one per namespace: each may use maxRead. The policies of
	// the operator have the same number of their own slots.
	maxEvaluations = 2
	// soon is the wait for a free slot, or for the cache.
	soon = time.Second
)

// evaluator runs the checks of type cel: after the delay of a check it reads the objects from the
// API server, and evaluates the rules once.
type evaluator struct {
	view  cluster.View
	clock clock.PassiveClock
	// remembered has the tries per check. It may be lost at any time.
	remembered *lru.Cache
	watch      *rules.Watch
	// operators are the slots of the operator's policies, tenants the slots of all others.
	operators, tenants *slots.Slots
}

func newEvaluator(c *cluster.Cluster) *evaluator {
	return &evaluator{
		view: c.View, clock: c.Clock, remembered: lru.New(maxRemembered), watch: c.Rules,
		operators: slots.New(maxEvaluations, 1), tenants: slots.New(maxEvaluations, 1),
	}
}

// evaluated identifies a check of a batch or a release, by one generation of its policy.
type evaluated struct {
	subject    types.UID
	check      string
	started    int64
	generation int64
}

// tried has the tries of one check by this process.
type tried struct {
	// done: it was evaluated, and there was nothing to write.
	done bool
	// failures is the number of failed evaluations, notBefore the time of the next one.
	failures  int
	notBefore time.Time
}

// next makes one step of a check.
func (p *evaluator) next(
	ctx context.Context, s *Subject, of *policy.Check, c *v1alpha1.CheckStatus,
) (next v1alpha1.CheckStatus, after time.Duration) {
	k := evaluated{subject: s.uid(), check: c.Name, started: timeOf(c.StartTime).Unix(), generation: of.Generation}
	found, _ := p.remembered.Get(k)
	known, _ := found.(tried)
	if known.done {
		return *c, 0
	}
	in := rulesInput{Now: p.clock.Now(), Check: of, Status: followed(c, of, s)}
	if left := latest(timeOf(c.StartTime).Add(of.Delay), known.notBefore).Sub(in.Now); left > 0 {
		return in.Status, left
	}
	result := p.evaluate(ctx, s, of, in.Status.Deadline)
	if result == nil {
		return *c, soon
	}
	in.Result, in.Tries = *result, known.failures
	next, after = decideRules(in)
	switch {
	case after > 0:
		p.remembered.Add(k, tried{failures: known.failures + 1, notBefore: in.Now.Add(after)})
	case equality.Semantic.DeepEqual(next, *c):
		p.remembered.Add(k, tried{done: true})
	}
	return next, after
}

// evaluate evaluates the rules against the API server; nil if no slot is free, or if the cache
// is still behind the API server.
func (p *evaluator) evaluate(ctx context.Context, s *Subject, of *policy.Check, deadline *metav1.Time) *rulesResult {
	late := deadline != nil && !p.clock.Now().Add(2*soon).Before(deadline.Time)
	bound := p.tenants
	if of.IsOf(p.view.Operator) {
		bound = p.operators
	}
	release, ok := bound.Try(s.Release.Namespace)
	switch {
	case !ok && late:
		return &rulesResult{Problem: "other checks by rules took all evaluation slots"}
	case !ok:
		return nil
	}
	defer func() { release() }()
	scope := rules.ScopeOf(of.Stage, of.Cel)
	program, problem, err := rules.Compile(ctx, of.Cel, scope, of.IsOf(p.view.Operator))
	if err != nil {
		problem = err.Error()
	}
	if problem != "" {
		return &rulesResult{Problem: problem}
	}
	load := p.load
	if scope == rules.OfRequest {
		load = p.loadSlipped
	}
	in, err := load(ctx, s)
	if errors.Is(err, errOtherTemplate) && deadline != nil && !late {
		return nil
	}
	if err != nil {
		return &rulesResult{Problem: oneLine(err)}
	}
	result := &rulesResult{Pods: len(in.Pods), Whole: scope == rules.OfRelease || scope == rules.OfRequest}
	if len(in.Pods) == 0 && !result.Whole {
		return result
	}
	evaluated := release
	release = func() {} // the evaluation releases the slot
	failures, err := p.watch.Evaluate(ctx, of.Rules(p.view.Operator), program, *in, evaluated)
	if result.False = failures; err != nil {
		result.Problem = oneLine(err)
	}
	if scope == rules.OfRequest && strings.Contains(result.Problem, "no such key: "+requestUser) {
		result.Final, result.Problem = true, "admission did not see the release, so its user is not known: "+result.Problem
	}
	return result
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }

// errOtherTemplate is the error if the workload does not have the template of the release: the
// cache is behind, or the release ends soon.
var errOtherTemplate = errors.New("the workload is gone, or has another template by now")

// load reads the objects of rules.
func (p *evaluator) load(ctx context.Context, s *Subject) (*rules.Input, error) {
	in, previous, err := p.templates(ctx, s)
	if err != nil {
		return nil, err
	}
	in.Release = map[string]any{
		"namespace": s.Workload.Namespace, "workload": s.Workload.Name, "kind": s.Workload.GVK.Kind,
		"version": s.Release.Spec.Reversion, "previousVersion": previous, "attempt": int64(s.Release.Status.Attempt),
		"changeStartTime": time.Unix(s.Release.Status.StartTimeUnix, 0).UTC(),
	}
	if s.Batch == nil {
		return in, nil
	}
	in.Release["batch"], in.Release["lastBatch"] = int64(record.BatchNumber(s.Batch)), s.Batch.Spec.Last
	in.Pods, err = p.pods(ctx, s.Batch)
	return in, err
}

// templates reads the workload, its template and the previous template. An object without pods has no templates.
func (p *evaluator) templates(ctx context.Context, s *Subject) (in *rules.Input, previous string, err error) {
	kind, err := p.view.KindOf(s.Workload)
	if err != nil {
		return nil, "", err
	}
	stored, err := p.view.Stored(ctx, s.Workload)
	if err != nil {
		return nil, "", err
	}
	if stored == nil {
		return nil, "", errOtherTemplate
	}
	in = &rules.Input{Workload: stored.Object}
	if s.Workload.WithoutPods {
		if stored.GetLabels()[v1alpha1.VersionLabel] != s.Release.Spec.Reversion {
			return nil, "", errOtherTemplate
		}
		stored.SetManagedFields(nil)
		previous, err = p.view.OldVersion(ctx, s.Workload)
		return in, previous, err
	}
	if in.NewTemplate, err = workload.Template(kind, stored); err != nil {
		return nil, "", err
	}
	if version, err := kind.VersionOf(stored); err != nil || version != s.Workload.Version {
		return nil, "", errOtherTemplate
	}
	if in.OldTemplate, previous, err = p.view.OldTemplate(ctx, s.Workload); err != nil {
		return nil, "", err
	}
	stored.SetManagedFields(nil)
	return in, previous, nil
}

// requestUser is the field of a request that has its user.
const requestUser = "userInfo"

// loadSlipped builds the request of a release that admission did not see: the stored object is
// the requested one. Without a known previous template, the request creates the workload.
func (p *evaluator) loadSlipped(ctx context.Context, s *Subject) (*rules.Input, error) {
	kind, err := p.view.KindOf(s.Workload)
	if err != nil {
		return nil, err
	}
	in, _, err := p.templates(ctx, s)
	if err != nil {
		return nil, err
	}
	ns, err := p.view.Namespace(ctx, s.Release.Namespace)
	if err != nil {
		return nil, err
	}
	operation, gvk := "CREATE", kind.GroupVersionKind()
	in.Object, in.Namespace = in.Workload, ns.ForRules()
	if in.OldTemplate != nil {
		operation, in.OldObject = "UPDATE", runtime.DeepCopyJSON(in.Object)
		path, _ := kind.TemplatePath() // the kind has a template, so it has a path
		if err := unstructured.SetNestedMap(in.OldObject, in.OldTemplate, path...); err != nil {
			return nil, err
		}
	}
	resource := map[string]any{"group": gvk.Group, "version": gvk.Version, "resource": kind.Resource()}
	of := map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
	in.Request = map[string]any{
		"operation": operation, "kind": of, "requestKind": of, "resource": resource, "requestResource": resource,
		"name": s.Workload.Name, "namespace": s.Workload.Namespace, "dryRun": false,
	}
	return in, nil
}

// pods reads the pods of a batch that exist.
func (p *evaluator) pods(ctx context.Context, batch *v1alpha1.ChangePod) ([]rules.Pod, error) {
	pods, read := make([]rules.Pod, len(batch.Spec.PodInfos)), atomic.Int64{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(podReads)
	for i, info := range batch.Spec.PodInfos {
		group.Go(func() (err error) {
			pods[i].Name = info.Pod
			pods[i].Object, err = p.view.StoredPod(ctx, batch.Namespace, info.Pod, types.UID(info.UID))
			if err == nil && read.Add(weightOf(pods[i].Object)) > maxRead {
				err = fmt.Errorf("the pods of the batch are too large: at most %d MiB of them are read for rules", maxRead>>20)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pods, func(pod rules.Pod) bool { return pod.Object == nil }), nil
}

// weightOf estimates the memory of a value, in bytes.
func weightOf(value any) int64 {
	const each = 64
	n := int64(each)
	switch v := value.(type) {
	case map[string]any:
		for k, of := range v {
			n += int64(len(k)) + weightOf(of)
		}
	case []any:
		for _, of := range v {
			n += weightOf(of)
		}
	case string:
		n += int64(len(v))
	default: // a number, or nothing
	}
	return n
}
