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

// Package journal describes the requests and callbacks of the simulator of
// AlterShield Server, each in one readable line.
package journal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

const (
	// shownPods is the number of named pods of a batch.
	shownPods = 3
	// shownVersion is the length of a shortened version.
	shownVersion = 8
)

// Line describes an entry.
type Line struct {
	// Time is the time of day, in UTC.
	Time string
	// Release is the workload and the version of the order, or the id of an unknown
	// order.
	Release string
	// Text describes the request or callback.
	Text string
}

// String returns the whole line.
func (l Line) String() string { return l.Time + "  " + l.Release + "  " + l.Text }

// Narrator describes entries, and remembers their orders and nodes. It may be used
// concurrently.
type Narrator struct {
	mu       sync.Mutex
	releases map[string]string // by order
	nodes    map[string]string // names by id
}

// NewNarrator returns a Narrator without orders.
func NewNarrator() *Narrator {
	return &Narrator{releases: map[string]string{}, nodes: map[string]string{}}
}

// Line describes an entry in one line. Entries come in the order of the journal.
func (t *Narrator) Line(e simulator.Entry) Line {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := ""
	if e.Kind == simulator.KindCallback {
		text = "callback  " + t.callback(e)
	} else {
		text = "request   " + t.request(e) + result(e)
	}
	release := cmp.Or(t.releases[e.Order], e.Order, "-")
	return Line{Time: e.Time.UTC().Format("15:04:05.000"), Release: printable(release), Text: printable(text)}
}

func (t *Narrator) request(e simulator.Entry) string {
	switch r := e.Request.(type) {
	case *altershield.SubmitOrderRequest:
		t.releases[e.Order] = releaseOf(r.Order)
		return "order submitted" + imagesOf(r.Order)
	case *altershield.SubmitAndStartRequest:
		t.releases[e.Order] = releaseOf(r.Order)
		return "admission asked" + imagesOf(r.Order)
	case *altershield.StartOrderRequest:
		t.stand(e, "order")
		return "order started"
	case *altershield.StartBatchRequest:
		name := fmt.Sprintf("batch %d/%d", r.BatchNo+1, r.TotalBatchNum)
		t.stand(e, name)
		return name + " started: " + pods(r.EffectiveTargetLocations)
	case *altershield.FinishNodeRequest:
		if !r.Success {
			return t.node(e) + " finished without success: " + r.Msg
		}
		return t.node(e) + " finished"
	case *altershield.RetrieveCheckRequest:
		return fmt.Sprintf("%s %s: asked for the verdict", t.node(e), r.DefenseStage)
	case *altershield.EndOrderRequest:
		return fmt.Sprintf("order ended: %s", r.FinishState)
	default:
		return string(e.Action)
	}
}

// stand remembers the name of the node that an answer created.
func (t *Narrator) stand(e simulator.Entry, name string) {
	if e.Accepted() && e.Node != "" {
		t.nodes[e.Node] = name
	}
}

func (t *Narrator) node(e simulator.Entry) string {
	return cmp.Or(t.nodes[e.Node], "node "+e.Node)
}

// result describes the end of a request that was not accepted.
func result(e simulator.Entry) string {
	switch {
	case e.Outage != simulator.NoOutage:
		return fmt.Sprintf(" -> outage: %s", e.Outage)
	case e.Accepted():
		return ""
	case e.Code == "":
		return strings.TrimRight(fmt.Sprintf(" -> HTTP %d %s", e.HTTPStatus, e.Msg), " ")
	default:
		return strings.TrimRight(fmt.Sprintf(" -> refused, %s %s", e.Code, e.Msg), " ")
	}
}

func (t *Narrator) callback(e simulator.Entry) string {
	if e.Callback == nil {
		return "of another form" + outcome(e)
	}
	c := e.Callback.Request
	text := fmt.Sprintf("%s %s: %s", t.node(e), c.Stage, c.Verdict.Verdict)
	if why := c.Verdict.Explanation(); why != "" {
		text += " (" + why + ")"
	}
	return text + outcome(e)
}

// outcome describes the end of a callback that the operator did not accept.
func outcome(e simulator.Entry) string {
	switch {
	case e.Answer == nil:
		return " -> " + e.Outcome
	case e.HTTPStatus == http.StatusOK && e.Answer.Success:
		return ""
	default:
		return strings.TrimRight(fmt.Sprintf(" -> refused, %s %s", e.Outcome, e.Answer.Msg), " ")
	}
}

// params are the described parameters of the operator's orders.
type params struct {
	Namespace string   `json:"namespace"`
	Workload  string   `json:"workload"`
	Version   string   `json:"version"`
	Images    []string `json:"images"`
	OldImages []string `json:"oldImages"`
}

func paramsOf(o altershield.Order) params {
	var p params
	// Invalid parameters are left out.
	_ = json.Unmarshal([]byte(o.ChangeParamJSON), &p)
	return p
}

func releaseOf(o altershield.Order) string {
	p := paramsOf(o)
	if p.Workload == "" {
		return o.ChangeTitle
	}
	return fmt.Sprintf("%s/%s %s", p.Namespace, p.Workload, p.Version[:min(len(p.Version), shownVersion)])
}

func imagesOf(o altershield.Order) string {
	p := paramsOf(o)
	text := ""
	if len(p.Images) > 0 {
		text = ": " + strings.Join(p.Images, ", ")
	}
	if len(p.OldImages) > 0 {
		text += " instead of " + strings.Join(p.OldImages, ", ")
	}
	return text
}

func pods(locations []string) string {
	if left := len(locations) - shownPods; left > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(locations[:shownPods], ", "), left)
	}
	return strings.Join(locations, ", ")
}

// printable replaces control characters, so that texts of clients cannot move the
// cursor of a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
