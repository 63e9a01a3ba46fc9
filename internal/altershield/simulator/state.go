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
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// order is an order the server knows.
type order struct {
	id    string
	bizID string
	// names are what scripts match workloads with.
	names []string
}

// nodeState is the state of a node.
type nodeState int

const (
	preRunning nodeState = iota
	preEnded
	postRunning
	postEnded
)

// node is the node of an order or of a batch.
type node struct {
	id        string
	order     *order
	scene     string
	checkType altershield.CheckType
	locations []string
	state     nodeState
	// run counts the checks of the node, so that the end of an earlier check does not end a
	// later one.
	run int
	// passed has the checks that passed. A check that timed out did not pass.
	passed map[altershield.Stage]bool
	// preFailedLate: the PRE check timed out, and then failed while the POST check ran. So the
	// POST check fails, whatever its own result is.
	preFailedLate bool
}

// check is a check of a node that is under way.
type check struct {
	node   *node
	stage  altershield.Stage
	run    int
	script Script
}

func success(domain any) reply { return reply{code: altershield.CodeSuccess, domain: domain} }

// handle carries a request out.
func (s *Simulator) handle(ctx context.Context, action altershield.Action, content []byte, entry Entry) reply {
	if !s.opts.SkipSignature && (entry.Platform != s.opts.Platform || !entry.Signed) {
		return refused(&refusal{code: altershield.CodePermissionDenied, msg: altershield.MsgPermissionDenied})
	}
	if action == altershield.ActionHeartbeat {
		// Two global switches, which the operator does not read.
		return success(map[string]string{"OPSCLOUD_CLIENT_SWITCH_CHG_SRV_CHECK": "true", "OPSCLOUD_CLIENT_SWITCH_OFF_CHANGE_SCENE_KEYS": ""})
	}
	body, refusal := validate(action, content)
	if refusal != nil {
		return refused(refusal)
	}
	if action == altershield.ActionSubmitAndStart {
		return s.submitAndStart(ctx, body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	scene := textOf(body, "changeSceneKey")
	if scene != s.opts.Scene && (scene != s.opts.AdmissionScene || scene == "") {
		return refused(illegal("change scene not found, changeSceneKey=%s", scene))
	}
	switch action {
	case altershield.ActionSubmitOrder:
		o, refusal := s.submit(body)
		if refusal != nil {
			return refused(refusal)
		}
		return success(map[string]any{"orderId": o.id, "url": o.id})
	case altershield.ActionStartOrder, altershield.ActionStartBatch:
		return s.start(action, body)
	case altershield.ActionEndOrder:
		if s.orders[textOf(body, "bizExecOrderId")] == nil {
			return refused(illegal("change order not found"))
		}
		return success(struct{}{})
	default:
		return s.handleNode(action, body)
	}
}

// handleNode carries out a request about a node. The caller holds the lock.
func (s *Simulator) handleNode(action altershield.Action, body map[string]any) reply {
	n := s.nodes[textOf(body, "nodeId")]
	switch {
	case n == nil:
		return refused(notSupported("node not found, nodeId:%s", textOf(body, "nodeId")))
	case action == altershield.ActionFinishNode:
		return s.finish(n, body)
	default:
		return s.retrieve(n, altershield.Stage(textOf(body, "defenseStage")))
	}
}

// submit stores an order. The caller holds the lock.
func (s *Simulator) submit(body map[string]any) (*order, *refusal) {
	bizID := textOf(body, "bizExecOrderId")
	if s.orders[bizID] != nil {
		return nil, &refusal{code: altershield.CodeDuplicate, msg: "duplicate bizExecOrderId: " + bizID}
	}
	o := &order{id: s.newID("order"), bizID: bizID, names: textsOf(body, "changeApps")}
	var params map[string]any
	if json.Unmarshal([]byte(textOf(body, "changeParamJson")), &params) == nil {
		for _, value := range params {
			if name, ok := value.(string); ok {
				o.names = append(o.names, name)
			}
		}
	}
	s.orders[bizID] = o
	return o, nil
}

// start creates a node and begins its PRE check. The caller holds the lock.
func (s *Simulator) start(action altershield.Action, body map[string]any) reply {
	scene, bizID := textOf(body, "changeSceneKey"), textOf(body, "bizExecOrderId")
	if scene != s.opts.Scene || slices.Contains(s.opts.Unconfigured, action) {
		return refused(illegal("change step is not configured, changeSceneKey=%s", scene))
	}
	o := s.orders[bizID]
	if o == nil {
		return refused(illegal("change order  not found, platform=%s, bizExecOrderId=%s", s.opts.Platform, bizID))
	}
	checkType := altershield.CheckOrder
	if action == altershield.ActionStartBatch {
		checkType = altershield.CheckBatch
	}
	n := s.newNode(o, scene, checkType, textsOf(body, "effectiveTargetLocations"))
	r := reply{code: altershield.CodeSuccess, node: n.id}
	script := s.scriptOf(n, altershield.StagePre)
	switch {
	case script.Lost:
		delete(s.nodes, n.id)
	case script.SkipCheck:
		n.state, n.passed[altershield.StagePre] = preEnded, true
	default:
		r.checks = []check{{node: n, stage: altershield.StagePre, run: n.run, script: script}}
	}
	r.domain = nodeAnswer(n, script.SkipCheck)
	return r
}

func (s *Simulator) newNode(o *order, scene string, checkType altershield.CheckType, locations []string) *node {
	n := &node{
		id: s.newID("node"), order: o, scene: scene, checkType: checkType, locations: locations,
		passed: map[altershield.Stage]bool{},
	}
	s.nodes[n.id] = n
	return n
}

// finish begins the POST check of a node, and always answers skipCheck. The caller holds the
// lock.
func (s *Simulator) finish(n *node, body map[string]any) reply {
	r := reply{code: altershield.CodeSuccess, domain: nodeAnswer(n, true)}
	switch n.state {
	case preRunning, postRunning:
		return refused(notSupported("node %s does not support this operation in its state", n.id))
	case postEnded:
		// Accepted, and starts nothing.
		return r
	case preEnded:
	}
	if locations := textsOf(body, "effectiveTargetLocations"); len(locations) > 0 {
		n.locations = locations
	}
	n.state = postRunning
	n.run++
	script := s.scriptOf(n, altershield.StagePost)
	if utf8.RuneCountInString(textOf(body, "msg")) > msgColumn {
		// Trap: the server accepts the long message, and then cannot start the check.
		script.Never, script.Early = true, false
	}
	r.checks = []check{{node: n, stage: altershield.StagePost, run: n.run, script: script}}
	return r
}

// retrieve answers a poll: always finished, and a failure until the check has passed. The
// caller holds the lock.
func (s *Simulator) retrieve(n *node, stage altershield.Stage) reply {
	ended := n.state == postEnded || stage == altershield.StagePre && n.state != preRunning
	verdict := altershield.VerdictFail
	if n.passed[stage] {
		verdict = altershield.VerdictPass
	}
	return success(map[string]any{
		"finished": ended || !s.opts.PollsTellRunning,
		"verdict":  map[string]any{"verdict": verdict, "allFinish": true, "checkPass": n.passed[stage]},
		"url":      n.order.id,
	})
}

// submitAndStart answers the call of generation G1: an order, its start and its verdict in one.
func (s *Simulator) submitAndStart(ctx context.Context, body map[string]any) reply {
	n, script, refusal := s.submitSync(body)
	if refusal != nil {
		return refused(refusal)
	}
	limit := s.opts.CheckTimeout
	if number, ok := body["checkTimeout"].(json.Number); ok {
		if ms, err := number.Int64(); err == nil && ms > 0 {
			limit = time.Duration(ms) * time.Millisecond
		}
	}
	delay, timedOut := script.duration(limit)
	if !s.wait(ctx, delay) {
		return reply{code: altershield.CodeSystem, msg: "interrupted"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n.state = preEnded
	n.passed[altershield.StagePre] = script.passes() && !timedOut
	r := success(map[string]any{
		"nodeId": n.id, "orderId": n.order.id, "url": n.order.id,
		"verdict": verdictOf(n, check{node: n, stage: altershield.StagePre, script: script}, !timedOut),
	})
	r.node = n.id
	return r
}

func (s *Simulator) submitSync(body map[string]any) (*node, Script, *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch scene := textOf(body, "changeSceneKey"); scene {
	case s.opts.AdmissionScene:
	case s.opts.Scene:
		return nil, Script{}, notSupported("the scene is not of generation G1")
	default:
		return nil, Script{}, illegal("change scene not found, changeSceneKey=%s", scene)
	}
	o, refusal := s.submit(body)
	if refusal != nil {
		return nil, Script{}, refusal
	}
	n := s.newNode(o, s.opts.AdmissionScene, altershield.CheckOrder, nil)
	return n, s.scriptOf(n, altershield.StagePre), nil
}

func nodeAnswer(n *node, skipCheck bool) map[string]any {
	return map[string]any{"nodeId": n.id, "skipCheck": skipCheck, "url": ""}
}

// newID makes an id. The caller holds the lock.
func (s *Simulator) newID(prefix string) string {
	s.lastID++
	return fmt.Sprintf("%s-%d-%06d", prefix, s.idBase, s.lastID)
}
