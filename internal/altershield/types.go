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

package altershield

import (
	"time"
)

// Action is the last path segment of a call. Some names are odd; they are what
// the server registers.
type Action string

// Actions of the protocol.
const (
	ActionSubmitOrder    Action = "submitChangeExecOrder"
	ActionStartOrder     Action = "submitChangeExecOrderStartNotify"
	ActionStartBatch     Action = "submitChangeExecBatchStartNotify"
	ActionFinishNode     Action = "submitChangeFinishNotify"
	ActionRetrieveCheck  Action = "retrieveChangeCheck"
	ActionEndOrder       Action = "finishChangeExecOrderAction"
	ActionSubmitAndStart Action = "submitAndStartChangeExecOrder"
	ActionHeartbeat      Action = "heartbeat"
)

// Addresses below the server's URL.
const (
	PathExe       = "/openapi/v1/exe/" // and the action
	PathHeartbeat = "/openapi/v1/heartbeat/config"
)

// ResultCode is the server's result code.
type ResultCode string

// Result codes of the server.
const (
	CodeSuccess          ResultCode = "000"
	CodeIllegalArgument  ResultCode = "101" // also: order, scene or step not found
	CodePermissionDenied ResultCode = "102" // see MsgPermissionDenied
	CodeNotSupported     ResultCode = "103" // not in this state, or node not found; to a repeated finish: it was received
	CodeAccessLimit      ResultCode = "104"
	CodeNotFound         ResultCode = "105"
	CodeDuplicate        ResultCode = "106" // the order exists: after a submission, go on
	CodePreCheckFailed   ResultCode = "110"
	CodePostCheckFailed  ResultCode = "111"
	CodeNoPreCheck       ResultCode = "151"
	CodeNoPostCheck      ResultCode = "152"
	CodeSPINotFound      ResultCode = "210"
	CodeSPIFailed        ResultCode = "211"
	CodeUnexpected       ResultCode = "901" // of class GiveUp where it always fails
	CodeSystem           ResultCode = "998"
)

// MsgPermissionDenied is all that the server says of a request that it does not
// accept because of its platform or its signature. It answers 102 also where
// something fails while it authenticates, and says more then.
const MsgPermissionDenied = "authentication request fail"

// Stage is one of the two checks of a node.
type Stage string

// Stages of a node's checks.
const (
	StagePre  Stage = "PRE"
	StagePost Stage = "POST"
)

// FinishState is how an order ended.
type FinishState string

// States an order ends in.
const (
	FinishSuccess  FinishState = "SUCCESS"
	FinishRollback FinishState = "ROLLBACK"
	FinishCancel   FinishState = "CANCEL"
)

// ScenarioDefault is the scenario of an order (changeScenarioCode).
const ScenarioDefault = "XX"

// Phases of a change (changePhases, changePhase).
const (
	PhaseDev      = "dev_phase"
	PhaseSim      = "sim_phase"
	PhasePre      = "pre_phase"
	PhaseGray     = "gray_phase"
	PhaseProdBeta = "prod_beta_phase"
	PhaseProd     = "prod_phase"
)

// Tags of a batch (isLastBatchTag, isLastBatchInChangePhaseTag).
const (
	TagLast    = "last"
	TagNotLast = "not_last"
)

// What a new server is registered with.
const (
	DefaultPlatform   = "kubernetes"
	DefaultScene      = "com.alipay.altershield.kubernetes.rollingupdate"
	DefaultTargetType = "paas.pod"
	DefaultTenant     = "default"
)

// Registration is what the operator is registered with at the server.
type Registration struct {
	Platform string
	// Scene is the key of the scene of generation G2. AdmissionScene is that of
	// generation G1, for the admission check; empty for none.
	Scene, AdmissionScene     string
	Tenant, Phase, TargetType string
}

// BatchTag is the tag of a batch: last or not.
func BatchTag(last bool) string {
	if last {
		return TagLast
	}
	return TagNotLast
}

// Millis is a point in time in milliseconds since the epoch, the only form of a
// date the server reads; anything else is answered HTTP 400. Zero is left out
// of requests, for which the server takes its own time.
type Millis int64

// MillisOf converts a time; the zero time is the zero Millis.
func MillisOf(t time.Time) Millis {
	if t.IsZero() {
		return 0
	}
	return Millis(t.UnixMilli())
}

// Base is common to all requests.
type Base struct {
	// TenantCode is required.
	TenantCode string `json:"tenantCode"`
	// ChangeSceneKey is the registered scene, at most [MaxChangeSceneKey] bytes.
	ChangeSceneKey string `json:"changeSceneKey"`
	// BizExecOrderID is our id of the order, at most [MaxBizExecOrderID] bytes
	// and unique per platform for ever.
	BizExecOrderID string `json:"bizExecOrderId"`
	// Platform is filled in by the client when blank.
	Platform string `json:"platform"`
}

// platformOf is how the client fills the platform in.
func (b *Base) platformOf() *string { return &b.Platform }

// ChangeContent names one thing a change touches.
type ChangeContent struct {
	ContentType  ContentType `json:"contentType"`
	InstanceName string      `json:"instanceName"`
}

// ContentType is the type of a [ChangeContent].
type ContentType struct {
	TypeName string `json:"typeName"`
}

// Order is what a submission says of an order.
type Order struct {
	// ChangeTitle is required, at most [MaxChangeTitle] bytes.
	ChangeTitle string `json:"changeTitle"`
	// Creator is required; cut it with [CutUser].
	Creator string `json:"creator"`
	// ChangeScenarioCode is required, [ScenarioDefault].
	ChangeScenarioCode string `json:"changeScenarioCode"`
	// ChangePhases is a required set of Phase constants.
	ChangePhases []string `json:"changePhases"`
	// ChangeContents is required.
	ChangeContents []ChangeContent `json:"changeContents"`
	// ChangeParamJSON is required JSON text.
	ChangeParamJSON string `json:"changeParamJson"`
	// ChangeApps is an optional set.
	ChangeApps []string `json:"changeApps,omitempty"`
}

// Phases are the phases a change may be in.
func Phases() []string {
	return []string{PhaseDev, PhaseSim, PhasePre, PhaseGray, PhaseProdBeta, PhaseProd}
}

// SubmitOrderRequest submits an order. A repeated submission is answered as a
// duplicate ([CodeDuplicate]): the order exists.
type SubmitOrderRequest struct {
	Base
	Order
}

// SubmitOrderResult is the answer to a submitted order.
type SubmitOrderResult struct {
	// OrderID is the server's id of the order.
	OrderID string `json:"orderId"`
	// URL shows the order to a user, where it is one: see [Link].
	URL string `json:"url"`
}

// Start is common to the start notifications of orders and batches.
type Start struct {
	// Executor is required; the server takes [MaxExecutor] bytes for a batch,
	// [MaxUser] for an order. Cut it with [CutUser].
	Executor string `json:"executor"`
	// StartTime is the server's time when zero.
	StartTime Millis `json:"startTime,omitempty"`
	// ReturnRuleWhenCheckFail asks for the rules with a failing verdict.
	ReturnRuleWhenCheckFail bool `json:"returnRuleWhenCheckFail,omitempty"`
}

// StartOrderRequest starts an order and its order-level PRE check. Repeating it
// creates a second node.
type StartOrderRequest struct {
	Base
	Start
}

// StartBatchRequest starts a batch and its PRE check. Repeating it creates a
// second node, which is not an error.
type StartBatchRequest struct {
	Base
	Start
	// BatchNo counts from 0.
	BatchNo int `json:"batchNo"`
	// TotalBatchNum and TotalBatchNumInChangePhase are required.
	TotalBatchNum              int `json:"totalBatchNum"`
	TotalBatchNumInChangePhase int `json:"totalBatchNumInChangePhase"`
	// IsLastBatchTag and IsLastBatchInChangePhaseTag are [TagLast] or
	// [TagNotLast], see [BatchTag].
	IsLastBatchTag              string `json:"isLastBatchTag"`
	IsLastBatchInChangePhaseTag string `json:"isLastBatchInChangePhaseTag"`
	// ChangePhase is a Phase constant.
	ChangePhase string `json:"changePhase"`
	// EffectiveTargetType and EffectiveTargetLocations say what the batch
	// touches; both are required.
	EffectiveTargetType      string   `json:"effectiveTargetType"`
	EffectiveTargetLocations []string `json:"effectiveTargetLocations"`
	// ExtInfo is passed through.
	ExtInfo map[string]any `json:"extInfo,omitempty"`
}

// NodeResult is the answer to a start or finish notification.
type NodeResult struct {
	// NodeID is the server's id of the node.
	NodeID string `json:"nodeId"`
	// SkipCheck says that there is nothing to wait for. It means that only in
	// the answer to a start: a finish is always answered with true, although its
	// check runs and its callback comes.
	SkipCheck bool `json:"skipCheck"`
	// URL shows the node to a user, where it is one: see [Link].
	URL string `json:"url"`
}

// FinishNodeRequest ends a batch or the order's node and starts its POST check.
// The server refuses it ([CodeNotSupported]) while the PRE check runs, and also
// when it received it before and the POST check runs.
type FinishNodeRequest struct {
	Base
	NodeID string `json:"nodeId"`
	// Success: the change itself worked. Always sent, for the server's default
	// is true.
	Success bool `json:"success"`
	// Msg has at most [MaxMsg] bytes.
	Msg string `json:"msg,omitempty"`
	// ChangeResultJSON is JSON text.
	ChangeResultJSON string `json:"changeResultJsn,omitempty"`
	// FinishTime is the server's time when zero.
	FinishTime Millis `json:"finishTime,omitempty"`
}

// RetrieveCheckRequest polls a check.
type RetrieveCheckRequest struct {
	Base
	NodeID string `json:"nodeId"`
	// DefenseStage says which of the node's checks.
	DefenseStage Stage `json:"defenseStage"`
}

// EndOrderRequest ends an order. A stock server accepts it and stores nothing:
// send it, build nothing on it.
type EndOrderRequest struct {
	Base
	FinishState FinishState `json:"finishState"`
	// ChangeResultJSON is JSON text.
	ChangeResultJSON string `json:"changeResultJsn,omitempty"`
	// Msg has at most [MaxMsg] bytes.
	Msg string `json:"msg,omitempty"`
	// FinishTime is the server's time when zero.
	FinishTime Millis `json:"finishTime,omitempty"`
}

// SubmitAndStartRequest submits an order, starts it and waits for its check in
// one call. Only for scenes registered as G1 (others are refused,
// [CodeNotSupported]), with an order id of its own.
type SubmitAndStartRequest struct {
	Base
	Order
	Executor  string `json:"executor"`
	StartTime Millis `json:"startTime,omitempty"`
	// CheckTimeout is in milliseconds; below 0 the server's default, 0 is left
	// out.
	CheckTimeout int64 `json:"checkTimeout,omitempty"`
}

// SubmitAndStartResult is the answer to a synchronous check.
type SubmitAndStartResult struct {
	NodeID  string `json:"nodeId"`
	OrderID string `json:"orderId"`
	URL     string `json:"url"`
	// Verdict is never nil in an answer the client returns without an error.
	Verdict *Verdict `json:"verdict"`
}
