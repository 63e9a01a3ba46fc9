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

package simulator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// This file has the validation of the server. The client has no validation of its own; its requests are tested against this one.

type kind int

const (
	text     kind = iota
	jsonText      // text that is JSON
	integer       // at least 0; absent is -1
	boolean
	date    // epoch milliseconds
	texts   // a set of strings
	objects // an array of objects
	object  // an object of strings
	anything
)

// field is one field of a request.
type field struct {
	name     string
	kind     kind
	required bool
	// max is in UTF-8 bytes; 0 is no limit.
	max int
	// column is the size of the database column in bytes, if it is less than max. Longer values
	// end as an unexpected exception.
	column int
	// json: the value is kept as JSON, in a column of 65,535 bytes.
	json bool
	// oneOf are the accepted values.
	oneOf []string
	// enum: another value makes the body unreadable.
	enum bool
}

func fields(groups ...[]field) []field { return slices.Concat(groups...) }

var (
	baseFields = []field{
		{name: "tenantCode", required: true},
		{name: "changeSceneKey", required: true, max: 256},
		{name: "bizExecOrderId", required: true, max: 128},
		{name: "platform", required: true, max: 32},
	}
	phases      = []string{"dev_phase", "sim_phase", "pre_phase", "gray_phase", "prod_beta_phase", "prod_phase"}
	orderFields = []field{
		{name: "changeTitle", required: true, max: 256},
		{name: "changeUrl", max: 512},
		{name: "creator", required: true, max: 128, column: 56},
		{name: "changeScenarioCode", required: true, oneOf: []string{"XX", "00", "01", "10", "12", "13", "30"}},
		{name: "changePhases", kind: texts, required: true, oneOf: phases},
		{name: "changeContents", kind: objects, required: true},
		{name: "changeParamJson", kind: jsonText, required: true, json: true},
		{name: "changeApps", kind: texts},
		{name: "parentOrderInfo", kind: object, json: true},
		{name: "planStartTime", kind: date},
	}
	startFields = []field{
		{name: "startTime", kind: date},
		{name: "emergency", kind: boolean},
		{name: "returnRuleWhenCheckFail", kind: boolean},
		{name: "extensionInfo", kind: anything},
	}
	orderExecutor = []field{{name: "executor", required: true, max: 128, column: 56}}
	batchExecutor = []field{{name: "executor", required: true, max: 128}}
	batchFields   = []field{
		{name: "batchNo", kind: integer, required: true},
		{name: "totalBatchNum", kind: integer, required: true},
		{name: "totalBatchNumInChangePhase", kind: integer, required: true},
		{name: "isLastBatchTag", oneOf: []string{"last", "not_last"}},
		{name: "isLastBatchInChangePhaseTag", oneOf: []string{"last", "not_last"}},
		{name: "changePhase", required: true, oneOf: phases},
		{name: "effectiveTargetType", required: true},
		{name: "effectiveTargetLocations", kind: texts, required: true, json: true},
		{name: "extInfo", kind: anything, json: true},
	}
	nodeFields  = []field{{name: "nodeId", required: true}}
	stageFields = []field{{name: "defenseStage", required: true, oneOf: []string{"PRE", "POST"}, enum: true}}

	fieldsOf = map[altershield.Action][]field{
		altershield.ActionSubmitOrder: fields(baseFields, orderFields),
		altershield.ActionStartOrder:  fields(baseFields, orderExecutor, startFields),
		altershield.ActionStartBatch:  fields(baseFields, batchExecutor, startFields, batchFields),
		altershield.ActionFinishNode: fields(baseFields, nodeFields, []field{
			{name: "success", kind: boolean},
			{name: "msg", max: 16384},
			{name: "serviceResult", kind: jsonText, json: true},
			{name: "changeResultJsn", kind: jsonText},
			{name: "finishTime", kind: date},
			{name: "effectiveTargetType"},
			{name: "effectiveTargetLocations", kind: texts, json: true},
			{name: "extensionInfo", kind: anything},
		}),
		altershield.ActionRetrieveCheck: fields(baseFields, nodeFields, stageFields),
		altershield.ActionEndOrder: fields(baseFields, []field{
			{name: "finishState", required: true, oneOf: []string{"SUCCESS", "ROLLBACK", "CANCEL"}},
			{name: "changeResultJsn", kind: jsonText},
			{name: "msg", max: 16384},
			{name: "finishTime", kind: date},
		}),
		altershield.ActionSubmitAndStart: fields(baseFields, orderFields, orderExecutor, []field{
			{name: "startTime", kind: date},
			{name: "checkTimeout", kind: anything},
		}),
	}
)

// refusal is an answer that is no success. Its status is HTTP 200 by default.
type refusal struct {
	status int
	code   altershield.ResultCode
	msg    string
}

func illegal(format string, args ...any) *refusal {
	return &refusal{code: altershield.CodeIllegalArgument, msg: fmt.Sprintf(format, args...)}
}

func notSupported(format string, args ...any) *refusal {
	return &refusal{code: altershield.CodeNotSupported, msg: fmt.Sprintf(format, args...)}
}

func unreadable(format string, args ...any) *refusal {
	return &refusal{status: 400, msg: fmt.Sprintf(format, args...)}
}

// Validate returns why the server would refuse the body of a request, or an empty string.
func Validate(action altershield.Action, content []byte) string {
	if _, refused := validate(action, content); refused != nil {
		return refused.msg
	}
	return ""
}

// validate reads and validates a body. It returns plain JSON values.
func validate(action altershield.Action, content []byte) (map[string]any, *refusal) {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	var body map[string]any
	if err := decoder.Decode(&body); err != nil || body == nil {
		return nil, unreadable("JSON parse error")
	}
	// The types come first: an unreadable body never reaches the validation.
	for _, f := range fieldsOf[action] {
		if value := body[f.name]; value != nil && !f.readable(value) {
			return body, unreadable("JSON parse error: cannot deserialize %s", f.name)
		}
	}
	for _, f := range fieldsOf[action] {
		if r := f.check(body[f.name]); r != nil {
			return body, r
		}
	}
	// A value that does not fit into its column fails when it is stored.
	for _, f := range fieldsOf[action] {
		if f.json && sizeOf(body[f.name]) > jsonColumn {
			return body, &refusal{code: altershield.CodeUnexpected, msg: fmt.Sprintf("Data too long for column '%s'", f.name)}
		}
	}
	return body, nil
}

const (
	// jsonColumn is the size of a column of JSON, in bytes.
	jsonColumn = 65535
	// msgColumn is the size of the column of a node's message, in characters.
	msgColumn = 4048
)

// sizeOf returns the size of a value in the database. JSON text is stored as it is.
func sizeOf(value any) int {
	if text, ok := value.(string); ok {
		return len(text)
	}
	var stored bytes.Buffer
	encoder := json.NewEncoder(&stored)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(value) != nil {
		return 0
	}
	return stored.Len() - len("\n")
}

func (f field) readable(value any) bool {
	switch f.kind {
	case text, jsonText:
		s, ok := value.(string)
		return ok && (!f.enum || slices.Contains(f.oneOf, s))
	case integer, date:
		n, ok := value.(json.Number)
		if !ok {
			return false
		}
		_, err := n.Int64()
		return err == nil
	case boolean:
		_, ok := value.(bool)
		return ok
	case texts:
		list, ok := value.([]any)
		return ok && !slices.ContainsFunc(list, func(e any) bool { _, ok := e.(string); return !ok })
	case object:
		fields, ok := value.(map[string]any)
		for _, value := range fields {
			_, isText := value.(string)
			ok = ok && (isText || value == nil)
		}
		return ok
	case objects:
		list, ok := value.([]any)
		return ok && !slices.ContainsFunc(list, func(e any) bool { _, ok := e.(map[string]any); return !ok })
	default:
		return true
	}
}

func (f field) check(value any) *refusal {
	switch value := value.(type) {
	case nil:
		if f.required {
			return illegal("%s must not be null", f.name)
		}
	case string:
		switch {
		case f.required && strings.TrimSpace(value) == "":
			return illegal("%s must not be blank", f.name)
		case f.max > 0 && len(value) > f.max:
			return illegal("%s is longer than %d", f.name, f.max)
		case f.column > 0 && len(value) > f.column:
			return &refusal{code: altershield.CodeUnexpected, msg: fmt.Sprintf("Data too long for column '%s'", f.name)}
		case f.kind == jsonText && value != "" && !json.Valid([]byte(value)):
			return illegal("%s is not json", f.name)
		case len(f.oneOf) > 0 && !slices.Contains(f.oneOf, value):
			return illegal("%s is unknown", f.name)
		}
	case json.Number:
		if n, err := value.Int64(); f.kind == integer && (err != nil || n < 0) {
			return illegal("%s must be greater than or equal to 0", f.name)
		}
	case []any:
		if f.required && len(value) == 0 && f.kind == objects {
			return illegal("%s must not be empty", f.name)
		}
		for _, element := range value {
			if s, ok := element.(string); ok && len(f.oneOf) > 0 && !slices.Contains(f.oneOf, s) {
				return illegal("%s is unknown", f.name)
			}
		}
	}
	return nil
}

func textOf(body map[string]any, name string) string {
	s, _ := body[name].(string)
	return s
}

func textsOf(body map[string]any, name string) []string {
	list, _ := body[name].([]any)
	var out []string
	for _, element := range list {
		if s, ok := element.(string); ok {
			out = append(out, s)
		}
	}
	return out
}
