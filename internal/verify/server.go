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

package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/identity"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
)

// Workers is the number of workers of the controllers that call AlterShield Server. They mostly
// wait for it.
const Workers = 32

// maxServerCalls bounds the concurrent calls to AlterShield Server. It is less than the
// workers, so that an unreachable server leaves workers for records that have their verdict.
const maxServerCalls = Workers * 3 / 4

// operatorUser is the user in calls that the operator makes by itself.
const operatorUser = "altershield-operator"

// ServerOptions has the address of AlterShield Server, and the registration of the operator there.
type ServerOptions struct {
	// URL of the server; empty for none.
	URL string
	// Tokens sign the calls.
	Tokens altershield.TokenSource
	altershield.Registration
}

// Connect prepares the connection to AlterShield Server; nil if there is none. It does not
// call the server, so that the operator starts while the server is down.
func Connect(ctx context.Context, config *rest.Config, o ServerOptions) (*Server, error) {
	if o.URL == "" {
		return nil, nil
	}
	cluster, err := identity.Cluster(ctx, config)
	if err != nil {
		return nil, err
	}
	c, err := altershield.New(altershield.Options{
		URL: o.URL, Platform: o.Platform, Tokens: o.Tokens, OnCall: metrics.ServerCall,
		RateLimit: altershield.RateLimit{InFlight: maxServerCalls},
	})
	if err != nil {
		return nil, err
	}
	return &Server{Client: c, Cluster: cluster, Tenant: o.Tenant, Scene: o.Scene, Phase: o.Phase, TargetType: o.TargetType}, nil
}

// Server reports releases to AlterShield Server.
type Server struct {
	Client *altershield.Client
	// Cluster is the UID of the namespace kube-system; it makes ids of orders
	// unique among clusters.
	Cluster types.UID
	// Tenant, Scene, Phase and TargetType are registered with the server.
	Tenant, Scene, Phase, TargetType string
}

// Connection returns the client, and the id of the cluster at the server; nil without a server.
func (s *Server) Connection() (*altershield.Client, types.UID) {
	if s == nil {
		return nil, ""
	}
	return s.Client, s.Cluster
}

// base returns the common fields of all calls about the order of a release. They do not change with
// the annotations of the namespace.
func (s *Server) base(change *v1alpha1.ChangeWorkload) altershield.Base {
	return altershield.Base{
		TenantCode: cmp.Or(change.Status.OrderTenant, s.Tenant), ChangeSceneKey: s.Scene, BizExecOrderID: change.Status.OrderID,
		Platform: s.Client.Platform(),
	}
}

// phase returns the change phase of a release.
func (s *Server) phase(change *v1alpha1.ChangeWorkload) string {
	return cmp.Or(change.Status.OrderPhase, s.Phase)
}

// maxTenant bounds the tenant code of a namespace, in bytes.
const maxTenant = 128

// OrderOf returns the tenant and the phase in the annotations of a namespace. Each problem is one
// line; the flags apply then.
func OrderOf(ns *metav1.PartialObjectMetadata) (tenant, phase string, problems []string) {
	tenant = strings.TrimSpace(ns.Annotations[v1alpha1.TenantAnnotation])
	phase = strings.TrimSpace(ns.Annotations[v1alpha1.PhaseAnnotation])
	if len(tenant) > maxTenant {
		problems = append(problems, fmt.Sprintf("annotation %s of the namespace: it is longer than %d bytes; --altershield-tenant applies",
			v1alpha1.TenantAnnotation, maxTenant))
		tenant = ""
	}
	if phase != "" && !slices.Contains(altershield.Phases(), phase) {
		problems = append(problems, fmt.Sprintf("annotation %s of the namespace: %q is not one of %s; --altershield-phase applies",
			v1alpha1.PhaseAnnotation, altershield.Cut(phase, maxTenant), strings.Join(altershield.Phases(), ", ")))
		phase = ""
	}
	return tenant, phase, problems
}

// released has the fields of an order that are not in the record of the release.
type released struct {
	namespace, workload string
	// apiVersion and kind of the workload, kind in lower case.
	apiVersion, kind  string
	images, oldImages []string
	by                string
	override          *defense.Overridden
	origin            altershield.Origin
}

// orderParams are the parameters of an order (changeParamJson).
type orderParams struct {
	Cluster    string   `json:"cluster"`
	Namespace  string   `json:"namespace"`
	APIVersion string   `json:"apiVersion,omitempty"`
	Kind       string   `json:"kind"`
	Workload   string   `json:"workload"`
	Version    string   `json:"version"`
	Attempt    int32    `json:"attempt"`
	Images     []string `json:"images,omitempty"`
	OldImages  []string `json:"oldImages,omitempty"`
	// ImagesLeftOut is the number of images of both lists for which there was no room.
	ImagesLeftOut int `json:"imagesLeftOut,omitempty"`
	// Override is set if the release passed a block or a quarantine. The order is not marked
	// as an emergency, for which the server skips all rules.
	Override *defense.Overridden `json:"override,omitempty"`
}

const (
	// maxTargets and maxPods bound the pods in the start of a batch, and maxImages each list of
	// images, in bytes of JSON. Each must fit into a column of the server, [altershield.MaxJSON].
	maxTargets = 60 << 10
	maxPods    = 56 << 10
	maxImages  = 24 << 10
)

// orderRequest returns the order of a release.
func (s *Server) orderRequest(change *v1alpha1.ChangeWorkload, r released) altershield.SubmitOrderRequest {
	images, oldImages := altershield.Fit(r.images, maxImages), altershield.Fit(r.oldImages, maxImages)
	return altershield.SubmitOrderRequest{
		Base: s.base(change),
		Order: altershield.Release{
			Title:     fmt.Sprintf("Release %s of %s %s/%s", change.Spec.Reversion, r.kind, r.namespace, r.workload),
			Namespace: r.namespace, Name: r.workload, App: change.Spec.AppName, User: r.by,
			Phase: s.phase(change), TargetType: s.TargetType, Origin: r.origin,
			Parameters: orderParams{
				Cluster: string(s.Cluster), Namespace: r.namespace, APIVersion: r.apiVersion, Kind: r.kind, Workload: r.workload,
				Version: change.Spec.Reversion, Attempt: change.Status.Attempt, Images: images, OldImages: oldImages,
				ImagesLeftOut: len(r.images) - len(images) + len(r.oldImages) - len(oldImages), Override: r.override,
			},
		}.Order(),
	}
}

// submit submits the order of a release.
func (s *Server) submit(ctx context.Context, change *v1alpha1.ChangeWorkload, r released) server.Answer {
	result, err := s.Client.SubmitOrder(ctx, s.orderRequest(change, r))
	a := answerOf(err)
	if result != nil {
		a.URL = altershield.Link(result.URL)
	}
	return a
}

func (s *Server) startOrder(ctx context.Context, change *v1alpha1.ChangeWorkload, r released, now time.Time) server.Answer {
	return started(s.Client.StartOrder(ctx, altershield.StartOrderRequest{
		Base:  s.base(change),
		Start: altershield.Start{Executor: altershield.CutUser(r.by), StartTime: altershield.MillisOf(now), ReturnRuleWhenCheckFail: true},
	}))
}

// startKnown starts an entry of an order that the server should know. If the server does not find
// it, the order may be lost: it is submitted once more. If that does not help, the step is not
// configured at the server.
func (s *Server) startKnown(
	ctx context.Context, change *v1alpha1.ChangeWorkload, about released, known server.Calls, start func() server.Answer,
) server.Answer {
	a := start()
	if a.Kind != server.AnswerIllegal || known.Call == server.CallStart && known.Last == server.AnswerIllegal {
		return a
	}
	switch again := s.submit(ctx, change, about); again.Kind {
	case server.AnswerDone, server.AnswerDuplicate:
		return start()
	default:
		return a
	}
}

// batchRequest returns the start of a batch.
func (s *Server) batchRequest(change *v1alpha1.ChangeWorkload, batch *v1alpha1.ChangePod, now time.Time) altershield.StartBatchRequest {
	number := int(record.BatchNumber(batch))
	total, last := max(int(batch.Spec.TotalBatches), number), altershield.BatchTag(batch.Spec.Last)
	targets, extInfo := podsOf(change, batch)
	return altershield.StartBatchRequest{
		Base: s.base(change),
		Start: altershield.Start{
			Executor: operatorUser, StartTime: altershield.MillisOf(now), ReturnRuleWhenCheckFail: true,
		},
		BatchNo:                     number - 1,
		TotalBatchNum:               total,
		TotalBatchNumInChangePhase:  total,
		IsLastBatchTag:              last,
		IsLastBatchInChangePhaseTag: last,
		ChangePhase:                 s.phase(change),
		EffectiveTargetType:         s.TargetType,
		EffectiveTargetLocations:    targets,
		ExtInfo:                     extInfo,
	}
}

// podsOf returns the pods in the start of a batch: their names, and in extInfo all their details. If
// there are too many pods, it returns the first ones, and the number of all.
func podsOf(change *v1alpha1.ChangeWorkload, batch *v1alpha1.ChangePod) (targets []string, extInfo map[string]any) {
	names := make([]string, len(batch.Spec.PodInfos))
	for i := range batch.Spec.PodInfos {
		names[i] = batch.Spec.PodInfos[i].Pod
	}
	targets, pods := altershield.Fit(names, maxTargets), altershield.Fit(batch.Spec.PodInfos, maxPods)
	_, kind := kindOf(change)
	extInfo = map[string]any{
		"namespace": batch.Namespace, "version": change.Spec.Reversion, "pods": pods,
		"workloadType": kind, "workloadName": change.Spec.ServiceName,
	}
	if len(pods) < len(names) || len(targets) < len(names) {
		extInfo["podCount"], extInfo["podsLeftOut"], extInfo["targetsLeftOut"] = len(names), len(names)-len(pods), len(names)-len(targets)
	}
	return targets, extInfo
}

func (s *Server) startBatch(ctx context.Context, change *v1alpha1.ChangeWorkload, batch *v1alpha1.ChangePod, now time.Time) server.Answer {
	return started(s.Client.StartBatch(ctx, s.batchRequest(change, batch, now)))
}

// results has the results of the pods in the end of a batch or an order (changeResultJsn). The
// duration, in seconds, counts from the creation of the batch, or from the acceptance of the order.
type results struct {
	Batch           int32 `json:"batch,omitempty"`
	Pods            int   `json:"pods,omitempty"`
	Verified        int32 `json:"verified"`
	Passed          int32 `json:"passed"`
	Failed          int32 `json:"failed"`
	Checking        int32 `json:"checking"`
	DurationSeconds int64 `json:"durationSeconds"`
}

func resultsOf(change *v1alpha1.ChangeWorkload, since int64, now time.Time) results {
	st := &change.Status
	return results{
		Verified: st.PassCount + st.FailCount, Passed: st.PassCount, Failed: st.FailCount, Checking: st.CheckingCount,
		DurationSeconds: max(now.Unix()-since, 0),
	}
}

// finishBatch notifies the end of a batch: with success once its pods are released, or with the
// reason if it ended without success.
func (s *Server) finishBatch(ctx context.Context, change *v1alpha1.ChangeWorkload, batch *v1alpha1.ChangePod, now time.Time) server.Answer {
	r := resultsOf(change, batch.Spec.CreateTimeUnix, now)
	r.Batch, r.Pods = record.BatchNumber(batch), len(batch.Spec.PodInfos)
	success, msg := server.EndsWithSuccess(batch), fmt.Sprintf("pods released: %d", len(batch.Spec.PodInfos))
	if !success {
		msg = server.HowBatchEnded(change, batch)
	}
	base := s.base(change)
	base.BizExecOrderID = cmp.Or(batch.Status.OrderID, base.BizExecOrderID)
	return s.finish(ctx, base, batch.Status.ChangePodID, success, msg, r, now)
}

// finishOrder notifies the end of the order's entry: with success once the pods are released and
// have passed, or with the reason if the order ends without success.
func (s *Server) finishOrder(ctx context.Context, change *v1alpha1.ChangeWorkload, why string, now time.Time) server.Answer {
	success, msg := change.Status.OrderEnd == "", fmt.Sprintf("pods released and verified: %d", change.Status.PassCount)
	if !success {
		msg = why
	}
	r := resultsOf(change, change.Status.OrderSubmitTimeUnix, now)
	return s.finish(ctx, s.base(change), change.Status.OrderNodeID, success, msg, r, now)
}

func (s *Server) finish(
	ctx context.Context, base altershield.Base, entry string, success bool, msg string, r results, now time.Time,
) server.Answer {
	_, err := s.Client.FinishNode(ctx, altershield.FinishNodeRequest{
		Base: base, NodeID: entry, Success: success, Msg: message(msg), ChangeResultJSON: altershield.JSONText(r),
		FinishTime: altershield.MillisOf(now),
	})
	return answerOf(err)
}

func (s *Server) endOrder(ctx context.Context, change *v1alpha1.ChangeWorkload, why string, now time.Time) server.Answer {
	return answerOf(s.Client.EndOrder(ctx, altershield.EndOrderRequest{
		Base: s.base(change), FinishState: altershield.FinishState(change.Status.OrderEnd), Msg: message(why),
		ChangeResultJSON: altershield.JSONText(resultsOf(change, change.Status.OrderSubmitTimeUnix, now)), FinishTime: altershield.MillisOf(now),
	}))
}

// message returns a text that the server can store.
func message(text string) string {
	return altershield.Cut(strings.ToValidUTF8(text, ""), altershield.MaxMsg)
}

// poll asks whether a check has passed.
func (s *Server) poll(ctx context.Context, change *v1alpha1.ChangeWorkload, nodeID string, stage altershield.Stage) server.Answer {
	result, err := s.Client.RetrieveCheck(ctx, altershield.RetrieveCheckRequest{Base: s.base(change), NodeID: nodeID, DefenseStage: stage})
	if err != nil {
		return answerOf(err)
	}
	if result.Passed() {
		return server.Answer{Kind: server.AnswerDone}
	}
	return server.Answer{Kind: server.AnswerNotPassed}
}

func started(result *altershield.NodeResult, err error) server.Answer {
	a := answerOf(err)
	if result != nil {
		a.NodeID, a.SkipCheck, a.URL = result.NodeID, result.SkipCheck, altershield.Link(result.URL)
	}
	return a
}

// answersOf has the answers by result code of the server, for codes that the class of the error does not tell apart.
var answersOf = map[altershield.ResultCode]server.AnswerKind{
	altershield.CodeDuplicate: server.AnswerDuplicate, altershield.CodeNotSupported: server.AnswerUnsupported,
	altershield.CodeIllegalArgument: server.AnswerIllegal, altershield.CodeNoPreCheck: server.AnswerNoCheck,
	altershield.CodeNoPostCheck: server.AnswerNoCheck,
}

// answerOf returns the answer for the error of a call.
func answerOf(err error) server.Answer {
	if err == nil {
		return server.Answer{Kind: server.AnswerDone}
	}
	a := server.Answer{Kind: server.AnswerRetry, Message: err.Error(), Unsent: errors.Is(err, altershield.ErrBreakerOpen)}
	var e *altershield.Error
	if !errors.As(err, &e) {
		return a
	}
	a.Unconfirmed, a.After = e.Ambiguous, e.RetryAfter
	switch kind, known := answersOf[e.Code]; {
	case errors.Is(err, altershield.ErrThrottled):
		a.Kind = server.AnswerThrottled
	case known:
		a.Kind = kind
	case e.Class == altershield.ClassHuman:
		a.Kind = server.AnswerDenied
	case e.Class == altershield.ClassGiveUp && e.Code == altershield.CodeUnexpected:
		a.Kind = server.AnswerUnprocessable
	case e.Class == altershield.ClassGiveUp:
		a.Kind = server.AnswerRefused
	}
	return a
}
