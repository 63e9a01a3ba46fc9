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

// Package journal tells what the simulator of AlterShield Server heard and
// said, one readable line per request and callback.
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
	// shownPods is how many pods of a batch are named.
	shownPods = 3
	// shownVersion is how much of a version tells it from others.
	shownVersion = 8
)

// Line is one entry, told.
type Line struct {
	// Time of day, in UTC.
	Time string
	// Release says whose order it is: workload and version, or the order's id
	// where the order was not seen.
	Release string
	// Text is what was asked or said.
	Text string
}

// String is the whole line.
func (l Line) String() string { return l.Time + "  " + l.Release + "  " + l.Text }

// Narrator tells entries, and remembers the orders and nodes they speak of. It
// may be used concurrently.
type Narrator struct {
	mu       sync.Mutex
	releases map[string]string // by order
	nodes    map[string]string // what they stand for, by id
}

// NewNarrator makes a narrator.
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
	return Line{Time: e.Time.UTC().Format("15:04:05.000"), Release: printable(cmp.Or(t.releases[e.Order], e.Order, "-")), Text: printable(text)}
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

// stand remembers what the node that an answer created stands for.
func (t *Narrator) stand(e simulator.Entry, name string) {
	if e.Accepted() && e.Node != "" {
		t.nodes[e.Node] = name
	}
}

func (t *Narrator) node(e simulator.Entry) string {
	return cmp.Or(t.nodes[e.Node], "node "+e.Node)
}

// result says how a request ended that was not simply accepted.
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

// outcome says what became of a callback that the operator did not simply take.
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

// params are the parameters of the operator's orders that are told.
type params struct {
	Namespace string   `json:"namespace"`
	Workload  string   `json:"workload"`
	Version   string   `json:"version"`
	Images    []string `json:"images"`
	OldImages []string `json:"oldImages"`
}

func paramsOf(o altershield.Order) params {
	var p params
	// What can't be read is not told.
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

// printable keeps what clients sent from moving the cursor of a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
