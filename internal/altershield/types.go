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

// Action is the last path segment of a call, as the server registers it.
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
	CodeDuplicate        ResultCode = "106" // the order exists: a success of a submission
	CodePreCheckFailed   ResultCode = "110"
	CodePostCheckFailed  ResultCode = "111"
	CodeNoPreCheck       ResultCode = "151"
	CodeNoPostCheck      ResultCode = "152"
	CodeSPINotFound      ResultCode = "210"
	CodeSPIFailed        ResultCode = "211"
	CodeUnexpected       ResultCode = "901" // ClassGiveUp if the request always fails
	CodeSystem           ResultCode = "998"
)

// MsgPermissionDenied is the whole message to a request with a wrong platform or a wrong
// signature. The server also answers 102 if it fails while it authenticates. The message is
// longer then.
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

// Values that a new server has registered.
const (
	DefaultPlatform   = "kubernetes"
	DefaultScene      = "com.alipay.altershield.kubernetes.rollingupdate"
	DefaultTargetType = "paas.pod"
	DefaultTenant     = "default"
)

// Registration has the values with which the operator is registered at the server.
type Registration struct {
	Platform string
	// Scene is the key of the scene of generation G2. AdmissionScene is the key of a scene of
	// generation G1 for the admission check; empty for no check.
	Scene, AdmissionScene     string
	Tenant, Phase, TargetType string
}

// BatchTag returns the tag of a batch: last or not.
func BatchTag(last bool) string {
	if last {
		return TagLast
	}
	return TagNotLast
}

// Millis is a point in time in milliseconds since the epoch. The server answers other forms of
// a date with HTTP 400. Zero is left out of requests, and the server takes its own time.
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
	// BizExecOrderID is the operator's id of the order, at most [MaxBizExecOrderID] bytes. It
	// is used only once per platform.
	BizExecOrderID string `json:"bizExecOrderId"`
	// Platform is filled in by the client if it is blank.
	Platform string `json:"platform"`
}

// platformOf returns the field that the client fills in.
func (b *Base) platformOf() *string { return &b.Platform }

// ChangeContent names one object of a change.
type ChangeContent struct {
	ContentType  ContentType `json:"contentType"`
	InstanceName string      `json:"instanceName"`
}

// ContentType is the type of a [ChangeContent].
type ContentType struct {
	TypeName string `json:"typeName"`
}

// Order has the fields of an order in its submission.
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
	Origin
}

// Origin has the optional fields of an order that a user sets.
type Origin struct {
	// ChangeURL links to the change.
	ChangeURL string `json:"changeUrl,omitempty"`
	// ParentOrderInfo is the order that the change is part of.
	ParentOrderInfo *ParentOrder `json:"parentOrderInfo,omitempty"`
}

// ParentOrder is an order of another system. The server requires all fields, and accepts empty ones.
type ParentOrder struct {
	OrderID    string `json:"orderId"`
	OrderTitle string `json:"orderTitle"`
	OrderURL   string `json:"orderUrl"`
}

// Phases returns the phases of a change.
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
	// URL shows the order to a user, if it is a link: see [Link].
	URL string `json:"url"`
}

// Start is common to the start notifications of orders and batches.
type Start struct {
	// Executor is required. The server takes [MaxExecutor] bytes for a batch, and [MaxUser]
	// for an order. Cut it with [CutUser].
	Executor string `json:"executor"`
	// StartTime zero means the server's time.
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

// StartBatchRequest starts a batch and its PRE check. Repeating it creates a second node
// without an error.
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
	// EffectiveTargetType and EffectiveTargetLocations are the targets of the batch. Both are
	// required.
	EffectiveTargetType      string   `json:"effectiveTargetType"`
	EffectiveTargetLocations []string `json:"effectiveTargetLocations"`
	// ExtInfo is further information for the server.
	ExtInfo map[string]any `json:"extInfo,omitempty"`
}

// NodeResult is the answer to a start or finish notification.
type NodeResult struct {
	// NodeID is the server's id of the node.
	NodeID string `json:"nodeId"`
	// SkipCheck means that there is nothing to wait for, but only in the answer to a start.
	// In the answer to a finish it is always true, although the check runs and its callback
	// comes.
	SkipCheck bool `json:"skipCheck"`
	// URL shows the node to a user, if it is a link: see [Link].
	URL string `json:"url"`
}

// FinishNodeRequest ends a batch or the order's node and starts its POST check.
// The server refuses it ([CodeNotSupported]) while the PRE check runs, and while the POST check
// runs after an earlier finish.
type FinishNodeRequest struct {
	Base
	NodeID string `json:"nodeId"`
	// Success reports whether the change itself worked. It is always sent, because the
	// server's default is true.
	Success bool `json:"success"`
	// Msg has at most [MaxMsg] bytes.
	Msg string `json:"msg,omitempty"`
	// ChangeResultJSON is JSON text.
	ChangeResultJSON string `json:"changeResultJsn,omitempty"`
	// FinishTime zero means the server's time.
	FinishTime Millis `json:"finishTime,omitempty"`
}

// RetrieveCheckRequest polls a check.
type RetrieveCheckRequest struct {
	Base
	NodeID string `json:"nodeId"`
	// DefenseStage selects the check of the node.
	DefenseStage Stage `json:"defenseStage"`
}

// EndOrderRequest ends an order. A stock server accepts it and stores nothing, so nothing may
// depend on it.
type EndOrderRequest struct {
	Base
	FinishState FinishState `json:"finishState"`
	// ChangeResultJSON is JSON text.
	ChangeResultJSON string `json:"changeResultJsn,omitempty"`
	// Msg has at most [MaxMsg] bytes.
	Msg string `json:"msg,omitempty"`
	// FinishTime zero means the server's time.
	FinishTime Millis `json:"finishTime,omitempty"`
}

// SubmitAndStartRequest submits an order, starts it and waits for its check in one call. It
// needs an order id of its own and a scene of generation G1. The server refuses other scenes
// ([CodeNotSupported]).
type SubmitAndStartRequest struct {
	Base
	Order
	Executor  string `json:"executor"`
	StartTime Millis `json:"startTime,omitempty"`
	// CheckTimeout is in milliseconds. Less than 0 means the server's default; 0 is left out.
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
