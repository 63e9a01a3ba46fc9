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

package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

const (
	checkScene = "com.alipay.altershield.kubernetes.admission"
	clusterUID = "0b9f3f0a-9c1e-4a54-8f6e-0d7c7f1f2a3b"
)

// checked is a mutating webhook that asks a simulator.
type checked struct {
	*testing.T
	sim     *simulator.Simulator
	handler handler
	calls   int
}

func newChecked(t *testing.T, scene string, change func(*settings.Settings)) *checked {
	t.Helper()
	sim := simulator.New(simulator.Options{Token: "0123456789abcdef", AdmissionScene: checkScene})
	if err := sim.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Shutdown)
	c, err := altershield.New(altershield.Options{
		URL: sim.URL(), Platform: altershield.DefaultPlatform, Tokens: altershield.StaticTokens{"0123456789abcdef"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &checked{T: t, sim: sim, handler: mutatingOf(Options{
		Self:    self,
		Checker: NewServerCheck(c, ServerCheckOptions{Registration: altershield.Registration{AdmissionScene: scene}, Cluster: clusterUID}),
		Settings: func(context.Context, string, map[string]string) (settings.InForce, error) {
			s := settings.Default()
			// Cases in which the server answers need time on a busy machine.
			s.AdmissionCheck, s.AdmissionTimeout = true, settings.MaxAdmissionTimeout
			if change != nil {
				change(&s)
			}
			return settings.InForce{Settings: s}, nil
		},
	}, deployments)}
}

// release sends a release of sleep in a new call.
func (c *checked) release(dryRun bool) admissionv1.AdmissionResponse {
	c.Helper()
	c.calls++
	req := makeRequest(released(""), released2(""))
	req.UID = types.UID(fmt.Sprintf("11111111-2222-3333-4444-%012d", c.calls))
	req.DryRun = ptr.To(dryRun)
	return review(c, c.handler, req)
}

func quickly(s *settings.Settings) { s.AdmissionTimeout = 200 * time.Millisecond }

func quicklyOrDenied(s *settings.Settings) {
	s.AdmissionTimeout, s.SilenceFails = 200*time.Millisecond, true
}

func silenceFails(s *settings.Settings) { s.SilenceFails = true }

func TestServerCheck(t *testing.T) {
	const denied = "deployment sleep: version " + repairVersion + " may not be released: "
	const without = "; released without its check"
	const unavailable = "AlterShield Server cannot be asked"
	refused := func(code int) string {
		return fmt.Sprintf("AlterShield Server refused the check (result code %d)", code) + without
	}
	silent := "AlterShield Server gave no answer in 200ms"
	tests := map[string]struct {
		scene    string
		settings func(*settings.Settings)
		prepare  func(*simulator.Simulator) error
		// wantDenied is the beginning of the message.
		wantDenied, wantWarning string
	}{
		"passes":  {},
		"no rule": {prepare: script(simulator.Script{Verdict: altershield.VerdictNone})},
		"fails": {
			prepare:    script(simulator.Script{Verdict: altershield.VerdictFail, Msg: "change freeze", URL: "http://altershield.example/why"}),
			wantDenied: denied + "change freeze; http://altershield.example/why",
		},
		"fails without a message": {
			prepare:    script(simulator.Script{Verdict: altershield.VerdictFail}),
			wantDenied: denied + "simulated-rule: simulated failure",
		},
		"fails with a long message": {
			prepare: script(simulator.Script{
				Verdict: altershield.VerdictFail, Msg: strings.Repeat("x", 5000), URL: "http://altershield.example/why",
			}),
			wantDenied: denied + strings.Repeat("x", maxExplained) + "; http://altershield.example/why",
		},
		"inconclusive": {
			prepare:    script(simulator.Script{Verdict: altershield.VerdictInconclusive, Msg: "who knows"}),
			wantDenied: denied + "who knows",
		},
		"late": {
			settings: quickly, prepare: script(simulator.Script{Verdict: altershield.VerdictFail, Delay: time.Minute}),
			wantWarning: silent + without,
		},
		"never":              {settings: quickly, prepare: script(simulator.Script{Never: true}), wantWarning: silent + without},
		"never, silence":     {settings: quicklyOrDenied, prepare: script(simulator.Script{Never: true}), wantDenied: denied + silent},
		"hangs":              {settings: quickly, prepare: outage(simulator.Hang), wantWarning: silent + without},
		"hangs, silence":     {settings: quicklyOrDenied, prepare: outage(simulator.Hang), wantDenied: denied + silent},
		"down":               {prepare: outage(simulator.Refuse), wantWarning: unavailable + without},
		"down, silence":      {settings: silenceFails, prepare: outage(simulator.Refuse), wantDenied: denied + unavailable},
		"HTTP 500":           {prepare: outage(simulator.HTTP500), wantWarning: unavailable + without},
		"HTML":               {prepare: outage(simulator.HTML), wantWarning: unavailable + without},
		"lost reply":         {prepare: outage(simulator.LostReply), wantWarning: unavailable + without},
		"not a G1 scene":     {scene: altershield.DefaultScene, wantWarning: refused(103)},
		"unknown scene":      {scene: "unknown", wantWarning: refused(101)},
		"bad signature":      {prepare: fault(altershield.CodePermissionDenied), wantWarning: refused(102)},
		"duplicate":          {prepare: fault(altershield.CodeDuplicate), wantWarning: refused(106)},
		"nothing to check":   {settings: silenceFails, prepare: fault(altershield.CodeNoPreCheck)},
		"no scene, no check": {scene: "none", prepare: script(simulator.Script{Verdict: altershield.VerdictFail})},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			scene := tt.scene
			switch scene {
			case "":
				scene = checkScene
			case "none":
				scene = ""
			}
			c := newChecked(t, scene, tt.settings)
			if tt.prepare != nil {
				if err := tt.prepare(c.sim); err != nil {
					t.Fatal(err)
				}
			}
			response := c.release(false)
			if got := strings.Join(response.Warnings, "\n"); got != tt.wantWarning {
				t.Errorf("warnings %q, want %q", got, tt.wantWarning)
			}
			if tt.wantDenied == "" {
				if !response.Allowed || response.Patch == nil {
					t.Errorf("answer %+v, want it mutated", response)
				}
				return
			}
			if response.Allowed || !strings.HasPrefix(response.Result.Message, tt.wantDenied) {
				t.Errorf("allowed = %t, message %q, want %q", response.Allowed, response.Result.Message, tt.wantDenied)
			}
		})
	}
}

func script(s simulator.Script) func(*simulator.Simulator) error {
	return func(sim *simulator.Simulator) error { sim.Script(s); return nil }
}

func outage(o simulator.Outage) func(*simulator.Simulator) error {
	return func(sim *simulator.Simulator) error { return sim.SetOutage(o) }
}

func fault(code altershield.ResultCode) func(*simulator.Simulator) error {
	return func(sim *simulator.Simulator) error { sim.Fault(simulator.Fault{Code: code}); return nil }
}

// TestServerCheckTries: each try of a denied release sends another order; repeated calls and
// dry runs send nothing.
func TestServerCheckTries(t *testing.T) {
	c := newChecked(t, checkScene, nil)
	c.sim.Script(simulator.Script{Match: simulator.Match{Workload: "sleep"}, Verdict: altershield.VerdictFail, Msg: "not yet", Times: 1})
	if response := c.release(true); !response.Allowed || response.Patch == nil {
		t.Errorf("tried: %+v, want it mutated", response)
	}
	if got := c.sim.Journal(); len(got) > 0 {
		t.Fatalf("a dry run sent\n%s", got)
	}
	if response := c.release(false); response.Allowed {
		t.Error("first try: allowed")
	}
	for _, name := range []string{"second try", "reinvoked"} {
		if response := c.release(false); !response.Allowed || response.Patch == nil || response.Warnings != nil {
			t.Errorf("%s: %+v, want it mutated without a warning", name, response)
		}
	}
	if got := c.sim.Journal().Accepted().Orders(); len(got) != 2 || got[0] == got[1] {
		t.Errorf("orders %q, want one per try", got)
	}
}

func TestServerCheckRequest(t *testing.T) {
	c := newChecked(t, checkScene, nil)
	c.release(false)
	sent := c.sim.Journal().Requests(altershield.ActionSubmitAndStart)
	if len(sent) != 1 || !sent[0].Accepted() || !sent[0].Signed {
		t.Fatalf("journal\n%s", c.sim.Journal())
	}
	var request altershield.SubmitAndStartRequest
	if err := sent[0].Decode(&request); err != nil {
		t.Fatal(err)
	}
	limit := settings.MaxAdmissionTimeout.Milliseconds()
	if request.CheckTimeout <= limit || request.CheckTimeout > limit+serverGrace.Milliseconds() {
		t.Errorf("checkTimeout %d, want it above our own limit of %d, so that ours ends first", request.CheckTimeout, limit)
	}
	request.CheckTimeout = 0
	want := altershield.SubmitAndStartRequest{
		Base: altershield.Base{
			TenantCode: "default", ChangeSceneKey: checkScene, Platform: "kubernetes",
			BizExecOrderID: "adm-0b9f3f0a9c1e4a548f6e0d7c7f1f2a3b-11111111-2222-3333-4444-000000000001-" + repairVersion,
		},
		Order: altershield.Order{
			ChangeTitle: "Release default/sleep " + repairVersion, Creator: "jane", ChangeScenarioCode: "XX",
			ChangePhases: []string{"prod_phase"}, ChangeApps: []string{"sleep"},
			ChangeContents: []altershield.ChangeContent{{ContentType: altershield.ContentType{TypeName: "paas.pod"}, InstanceName: "default/sleep"}},
			ChangeParamJSON: `{"cluster":"` + clusterUID + `","namespace":"default","workload":"sleep","version":"` + repairVersion +
				`","oldVersion":"` + sleepVersion + `","images":["busybox"],"oldImages":["busybox"]}`,
		},
		Executor: "jane",
	}
	if diff := cmp.Diff(want, request); diff != "" {
		t.Error("(-want +got):\n", diff)
	}
}

// TestServerCheckOrigin: the order of the admission check has the link and the parent order of the request.
func TestServerCheckOrigin(t *testing.T) {
	request := (&serverCheck{}).request(Question{Annotations: map[string]string{
		v1alpha1.ChangeURLAnnotation: "https://ci.example.com/7", v1alpha1.ChangeOrderAnnotation: "CHG-7",
	}})
	want := altershield.Origin{ChangeURL: "https://ci.example.com/7", ParentOrderInfo: &altershield.ParentOrder{
		OrderID: "CHG-7", OrderTitle: "CHG-7", OrderURL: "https://ci.example.com/7",
	}}
	if diff := cmp.Diff(want, request.Origin); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestServerCheckLimits: the server accepts a request about a workload with long values, or
// without them.
func TestServerCheckLimits(t *testing.T) {
	long := strings.Repeat("é", 3000)
	q := Question{
		RequestUID: types.UID(long), Namespace: strings.Repeat("n", 63), Name: strings.Repeat("w", 253), App: strings.Repeat("w", 253),
		User: long, Version: sleepVersion, OldVersion: repairVersion, Images: make([]string, 3*maxImages),
	}
	for i := range q.Images {
		q.Images[i] = long
	}
	q.OldImages = q.Images
	for name, q := range map[string]Question{"long": q, "empty": {Namespace: "a", Name: "b", App: "b", Version: sleepVersion, User: " "}} {
		t.Run(name, func(t *testing.T) {
			check, ok := NewServerCheck(new(altershield.Client), ServerCheckOptions{
				Registration: altershield.Registration{AdmissionScene: "s", Tenant: "t", Phase: altershield.PhaseGray, TargetType: "x"}, Cluster: long,
			}).(*serverCheck)
			if !ok {
				t.Fatal("no check")
			}
			request := check.request(q)
			request.Platform = altershield.DefaultPlatform
			if refused := simulator.Validate(altershield.ActionSubmitAndStart, []byte(altershield.JSONText(request))); refused != "" {
				t.Error(refused)
			}
			if !strings.HasSuffix(request.ChangeTitle, " "+sleepVersion) {
				t.Errorf("title %q lost the version", request.ChangeTitle)
			}
			targetType := request.ChangeContents[0].ContentType.TypeName
			if request.TenantCode != "t" || request.ChangePhases[0] != altershield.PhaseGray || targetType != "x" {
				t.Errorf("the options are not used: %+v", request)
			}
			var got params
			if err := json.Unmarshal([]byte(request.ChangeParamJSON), &got); err != nil {
				t.Fatal(err)
			}
			if got.Images == nil || got.OldImages == nil || len(got.Images) > maxImages {
				t.Errorf("images %d, old images %d, want lists of at most %d", len(got.Images), len(got.OldImages), maxImages)
			}
		})
	}
	if a, b := checkOrderID(long, q), checkOrderID(long, Question{RequestUID: "2", Version: sleepVersion}); a == b {
		t.Errorf("one order id %s for two questions", a)
	}
}

func TestNoServerCheck(t *testing.T) {
	if c := NewServerCheck(nil, ServerCheckOptions{Registration: altershield.Registration{AdmissionScene: checkScene}}); c != nil {
		t.Error("a check without a server")
	}
	if c := NewServerCheck(new(altershield.Client), ServerCheckOptions{}); c != nil {
		t.Error("a check without a scene")
	}
}
