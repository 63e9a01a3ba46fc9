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
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// forever is the duration of a check that never ends.
const forever = 1 << 62 * time.Nanosecond

// maxCallbackAnswer bounds what is read of an answer.
const maxCallbackAnswer = 64 << 10

// duration returns how long a check runs, and whether the server's timeout ends it.
func (s Script) duration(limit time.Duration) (d time.Duration, timedOut bool) {
	d = s.Delay
	switch {
	case s.Never:
		d = forever
	case s.Early:
		d = 0
	}
	if limit > 0 && d > limit {
		return limit, true
	}
	return d, false
}

// begin runs a check in the background.
func (s *Simulator) begin(c check) {
	if !s.track() {
		return
	}
	go func() {
		defer s.running.Done()
		s.run(c)
	}()
}

// run runs a check to its end and sends its callback, at most once.
func (s *Simulator) run(c check) {
	delay, timedOut := c.script.duration(s.opts.CheckTimeout)
	if !s.wait(s.ctx, delay) || !s.end(c, timedOut) || !s.wait(s.ctx, c.script.CallbackDelay) {
		return
	}
	content, known := s.compose(c, timedOut)
	if !known {
		return
	}
	s.send(c, content)
	if timedOut && !c.script.Never && s.wait(s.ctx, c.script.Delay-delay) {
		s.endLate(c)
	}
}

// endLate takes the late result of a check that timed out. There is no second callback. A PRE
// check that fails while the POST check runs makes the POST check fail.
func (s *Simulator) endLate(c check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := c.node
	if s.nodes[n.id] != n {
		return
	}
	if n.run == c.run {
		n.passed[c.stage] = c.script.passes()
	}
	if c.stage == altershield.StagePre && n.state == postRunning && !c.script.passes() {
		n.preFailedLate = true
	}
}

// end ends a check, unless the node is gone or another check of the node began.
func (s *Simulator) end(c check, timedOut bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[c.node.id] != c.node || c.node.run != c.run {
		return false
	}
	c.node.passed[c.stage] = c.script.passes() && !timedOut && !c.node.preFailedLate
	if c.stage == altershield.StagePre {
		c.node.state = preEnded
	} else {
		c.node.state = postEnded
	}
	return true
}

// compose writes the callback from the current state of the node. If the node has gone on
// since the end of this check, the callback says pass.
func (s *Simulator) compose(c check, timedOut bool) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := c.node
	if s.nodes[n.id] != n {
		return nil, false
	}
	verdict := verdictOf(n, c, n.run == c.run && !timedOut)
	if n.preFailedLate && c.stage == altershield.StagePost && n.run == c.run {
		// Trap: the verdict fails, and the rules in it are of this check and passed.
		verdict["verdict"], verdict["checkPass"] = altershield.VerdictFail, false
		verdict["rules"] = writeRules([]altershield.Rule{{ID: "rule-2", Name: "simulated-rule", Verdict: "PASS", Stage: c.stage}})
	}
	data, err := json.Marshal(map[string]any{
		"changeCheckType": n.checkType,
		"callbackRequest": map[string]any{
			"nodeId":           n.id,
			"changeSceneKey":   n.scene,
			"bizExecOrderId":   n.order.bizID,
			"defenseStageEnum": c.stage,
			"verdict":          verdict,
		},
	})
	if err != nil {
		panic(err)
	}
	return data, true
}

// verdictOf writes a verdict as a stock server does: outcome, allFinish, the computed
// checkPass, and rules. Other fields are written only if they are scripted. Null fields are
// left out.
func verdictOf(n *node, c check, counts bool) map[string]any {
	if !counts {
		return map[string]any{"verdict": altershield.VerdictPass, "allFinish": true, "checkPass": true, "rules": []any{}}
	}
	script := c.script
	verdict := map[string]any{
		"verdict": script.verdict(), "allFinish": true, "checkPass": script.passes(), "rules": rulesOf(n, c),
	}
	if script.Msg != "" {
		verdict["msg"] = script.Msg
	}
	if script.URL != "" {
		verdict["url"] = script.URL
	}
	if script.Rollback {
		verdict["rollback"] = true
	}
	return verdict
}

func rulesOf(n *node, c check) []map[string]any {
	rules := c.script.Rules
	if rules == nil && !c.script.passes() {
		subject := "order " + n.order.bizID
		if len(n.locations) > 0 {
			subject = fmt.Sprint(n.locations)
		}
		rules = []altershield.Rule{{
			ID: "rule-1", Name: "simulated-rule", Msg: "simulated failure of " + subject, Verdict: "FAIL", Stage: c.stage,
		}}
	}
	return writeRules(rules)
}

func writeRules(rules []altershield.Rule) []map[string]any {
	out := make([]map[string]any, 0, len(rules))
	for _, rule := range rules {
		fields := map[string]any{"status": "SUCCESS", "ignored": rule.Ignored, "allowIgnore": true}
		for name, value := range map[string]string{
			"ruleExeId": rule.ID, "name": rule.Name, "msg": rule.Msg, "url": rule.URL, "verdict": string(rule.Verdict),
			"stage": string(rule.Stage),
		} {
			if value != "" {
				fields[name] = value
			}
		}
		out = append(out, fields)
	}
	return out
}

// send sends the copies of a callback, all at once.
func (s *Simulator) send(c check, content []byte) {
	s.mu.Lock()
	urls := s.callbacks
	s.mu.Unlock()
	copies := max(c.script.Copies, 1)
	var sent sync.WaitGroup
	for i := range copies {
		url := ""
		if len(urls) > 0 {
			url = urls[i%len(urls)]
		}
		sent.Go(func() { s.deliver(s.ctx, url, content, c.script.Drop) })
	}
	sent.Wait()
}

// SendCallback signs and sends a callback that the caller made, and returns its entry in the
// journal.
func (s *Simulator) SendCallback(ctx context.Context, url string, callback altershield.Callback) (Entry, error) {
	content, err := json.Marshal(callback)
	if err != nil {
		return Entry{}, err
	}
	return s.deliver(ctx, url, content, false), nil
}

// deliver sends one callback and records it. It ignores the answer.
func (s *Simulator) deliver(ctx context.Context, url string, content []byte, drop bool) Entry {
	entry := Entry{Kind: KindCallback, Time: s.clock.Now(), Body: content, URL: url, Outcome: OutcomePending}
	if callback := (altershield.Callback{}); json.Unmarshal(content, &callback) == nil {
		entry.Callback = &callback
		entry.Order, entry.Node = callback.Request.BizExecOrderID, callback.Request.NodeID
	}
	kept := s.record(entry)
	outcome, answer, status := OutcomeNoAddress, (*altershield.CallbackResponse)(nil), 0
	switch {
	case drop:
		outcome = OutcomeDropped
	case url != "":
		outcome, answer, status = s.post(ctx, url, content)
	}
	done := s.complete(kept, func(e *Entry) { e.Outcome, e.Answer, e.HTTPStatus = outcome, answer, status })
	s.show(done)
	return done
}

func (s *Simulator) post(
	ctx context.Context, url string, content []byte,
) (outcome string, answer *altershield.CallbackResponse, status int) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(content))
	if err != nil {
		return err.Error(), nil, 0
	}
	timestamp := altershield.Timestamp(s.clock.Now())
	req.Header.Set("Content-Type", callbackContentType)
	req.Header.Set(altershield.HeaderPlatform, s.opts.Platform)
	req.Header.Set(altershield.HeaderTimestamp, timestamp)
	req.Header.Set(altershield.HeaderSign, altershield.Sign(timestamp, content, s.opts.Token))
	resp, err := s.client.Do(req)
	if err != nil {
		return err.Error(), nil, 0
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxCallbackAnswer))
	if err != nil {
		return err.Error(), nil, resp.StatusCode
	}
	var read altershield.CallbackResponse
	if json.Unmarshal(data, &read) == nil {
		answer = &read
	}
	return strconv.Itoa(resp.StatusCode), answer, resp.StatusCode
}
