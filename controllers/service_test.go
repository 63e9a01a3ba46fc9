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

package controllers_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/world"
)

// serviceAPI answers the requests of a story over connections in memory, by the verdicts in turn. The last one is repeated.
type serviceAPI struct{ verdicts []string }

func (p *serviceAPI) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go p.serve(theirs)
	return ours, nil
}

// serve answers one request.
func (p *serviceAPI) serve(conn net.Conn) {
	defer conn.Close()
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	answer := http.Response{StatusCode: http.StatusMethodNotAllowed, ProtoMajor: 1, ProtoMinor: 1, Close: true, Request: r}
	if r.Method == http.MethodPost {
		body := fmt.Sprintf(`{"id":%q,"verdict":%q,"message":"run 7"}`, r.Header.Get("Webhook-Id"), p.verdicts[0])
		p.verdicts = p.verdicts[min(1, len(p.verdicts)-1):]
		answer.StatusCode, answer.ContentLength, answer.Body = http.StatusOK, int64(len(body)), io.NopCloser(strings.NewReader(body))
	}
	_ = answer.Write(conn) // the client may be gone
}

// reviewed has a policy with a service that gives these verdicts.
func reviewed(verdicts ...string) world.Options {
	e := v1alpha1.DefenseEndpoint{}
	e.Namespace, e.Name = world.OperatorNamespace, "gate"
	e.Spec = v1alpha1.DefenseEndpointSpec{Type: v1alpha1.EndpointHTTP, URL: "http://gate.test/verify"}
	o := withPolicies(noDefault(), podHealth("policy", func(p *v1alpha1.DefensePolicy) {
		c := &p.Spec.Checks[0]
		c.PodHealth, c.Service = nil, &v1alpha1.ServiceCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: "gate"}, Invoke: v1alpha1.ServicePolling,
		}
	}))
	o.Endpoints, o.Dial = []v1alpha1.DefenseEndpoint{e}, (&serviceAPI{verdicts}).dial
	return o
}

func TestServices(t *testing.T) {
	for _, story := range []world.Story{
		{Name: "a service that passes", Options: reviewed("running", "pass"), Run: func(w *world.World) {
			create(w, web(1))
			endsAs(w, v1alpha1.CheckPassed, v1alpha1.ReasonServiceVerdict, "endpoint gate: pass: run 7")
			until(w, v1alpha1.ChangeWorkloadSuccess)
		}},
		{Name: "a service that fails", Options: reviewed("running", "fail"), Run: func(w *world.World) {
			create(w, web(1))
			endsAs(w, v1alpha1.CheckFailed, v1alpha1.ReasonServiceVerdict, "endpoint gate: fail: run 7")
			until(w, v1alpha1.ChangeWorkloadSuspend)
			w.Until("it is blocked", func() bool { return labelled(w, v1alpha1.SuspendLabel) })
		}},
		{Name: "a service that does not finish", Options: reviewed("running"), Run: func(w *world.World) {
			create(w, web(1))
			endsAs(w, v1alpha1.CheckError, v1alpha1.ReasonServiceRunning, "until the deadline")
			until(w, v1alpha1.ChangeWorkloadSuccess)
		}},
	} {
		t.Run(story.Name, func(t *testing.T) { world.Reference(t, story) })
	}
}
