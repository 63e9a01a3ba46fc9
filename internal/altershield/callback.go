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
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// CallbackPath is the path at which the operator takes callbacks. The server has it
// registered with the scene.
const CallbackPath = "/openapi/altershield/callback"

// maxNodeID bounds an id that the operator keeps. The server's ids have less than half of it.
const maxNodeID = 256

// CheckType is the kind of node that a callback is about.
type CheckType string

// Kinds of nodes.
const (
	CheckOrder  CheckType = "CHANGE_ORDER"
	CheckBatch  CheckType = "CHANGE_BATCH"
	CheckAction CheckType = "CHANGE_ACTION"
)

// Callback is the body of a callback. The server sends it at most once and
// ignores the answer.
type Callback struct {
	CheckType CheckType       `json:"changeCheckType"`
	Request   CallbackRequest `json:"callbackRequest"`
}

// CallbackRequest is the verdict on one check of one node.
type CallbackRequest struct {
	NodeID         string  `json:"nodeId"`
	ChangeSceneKey string  `json:"changeSceneKey"`
	BizExecOrderID string  `json:"bizExecOrderId"`
	Verdict        Verdict `json:"verdict"`
	Stage          Stage   `json:"defenseStageEnum"`
}

// LatePre reports whether a failing POST verdict is the late verdict of the PRE check. The
// server passes a PRE check at its own timeout. If the PRE check fails after the finish, its
// result overwrites the result of the POST check. No rule of the POST check failed then.
func (r *CallbackRequest) LatePre() bool {
	if r.Stage != StagePost || r.Verdict.Passes() || len(r.Verdict.Rules) == 0 {
		return false
	}
	return !slices.ContainsFunc(r.Verdict.Rules, func(rule Rule) bool {
		return rule.Stage != StagePre && !rule.Verdict.passes() && !rule.Ignored
	})
}

// CallbackResponse answers a callback.
type CallbackResponse struct {
	Success bool   `json:"success"`
	Retry   bool   `json:"retry"`
	Msg     string `json:"msg"`
}

// UnmarshalJSON reads an answer as the server does: an absent success is true.
func (r *CallbackResponse) UnmarshalJSON(data []byte) error {
	type plain CallbackResponse
	read := plain{Success: true}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*r = CallbackResponse(read)
	return nil
}

// IsJSON reports whether a content type is JSON. It reads the type and no parameters: the
// server sends application/json;UTF-8, which is not well formed.
func IsJSON(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "application/json")
}

// ParseCallback reads a callback with a verified signature and a limited size. It ignores
// unknown fields and takes null fields as absent. The error is one line. Of the body it quotes
// only names of types.
func ParseCallback(contentType string, body []byte) (*Callback, error) {
	if !IsJSON(contentType) {
		return nil, fmt.Errorf("the content type is %q, not application/json", Cut(line(contentType), 64))
	}
	var c Callback
	// Text after the object is an error: the signature covers the text, and the operator
	// does not read it.
	if err := json.Unmarshal(bytes.TrimSpace(body), &c); err != nil {
		return nil, fmt.Errorf("the body is not a callback: %w", describeJSON(err))
	}
	switch c.CheckType {
	case CheckOrder, CheckBatch, CheckAction:
	default:
		return nil, fmt.Errorf("changeCheckType is %q", Cut(line(string(c.CheckType)), 64))
	}
	switch c.Request.Stage {
	case StagePre, StagePost:
	default:
		return nil, fmt.Errorf("defenseStageEnum is %q", Cut(line(string(c.Request.Stage)), 64))
	}
	switch {
	case strings.TrimSpace(c.Request.NodeID) == "":
		return nil, errors.New("nodeId is missing")
	case len(c.Request.NodeID) > maxNodeID:
		return nil, fmt.Errorf("nodeId has more than %d bytes", maxNodeID)
	case strings.TrimSpace(c.Request.BizExecOrderID) == "":
		return nil, errors.New("bizExecOrderId is missing")
	case len(c.Request.BizExecOrderID) > MaxBizExecOrderID:
		return nil, fmt.Errorf("bizExecOrderId has more than %d bytes", MaxBizExecOrderID)
	case c.Request.Verdict.Verdict == "":
		return nil, errors.New("verdict is missing")
	}
	return &c, nil
}

// describeJSON describes a decoding error without quoting the document.
func describeJSON(err error) error {
	var syntax *json.SyntaxError
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("invalid JSON at byte %d", syntax.Offset)
	case errors.As(err, &wrongType):
		return fmt.Errorf("%s has the wrong type", wrongType.Field)
	default:
		return errors.New(Cut(line(err.Error()), 128))
	}
}
