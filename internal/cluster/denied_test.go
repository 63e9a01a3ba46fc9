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

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	webhookDenied = `{"status":"Failure","message":"admission webhook \"policy.example.com\" denied the request`
	webhookSaysNo = webhookDenied + `: policy says no",`
	policySaysNo  = `ValidatingAdmissionPolicy 'p' with binding 'b' denied request: policy says no`
	policyDenied  = `{"status":"Failure","message":"deployments.apps \"d\" is forbidden: ` + policySaysNo +
		`","details":{"name":"d","group":"apps","kind":"deployments","causes":[{"message":"` + policySaysNo + `"}]},`
	ofDeployment = `"details":{"name":"d","group":"apps","kind":"deployments"},`
)

// answers are answers of an API server of 1.36.3 to patches of a Deployment d.
var answers = map[string]string{
	"webhook 403":          webhookSaysNo + `"code":403}`,
	"webhook 400":          webhookSaysNo + `"code":400}`,
	"webhook 404":          webhookSaysNo + `"code":404}`,
	"webhook 404, named":   webhookSaysNo + `"reason":"NotFound","code":404}`,
	"webhook 404, silent":  webhookDenied + ` without explanation","code":404}`,
	"webhook 409":          webhookSaysNo + `"code":409}`,
	"webhook 409, named":   webhookSaysNo + `"reason":"Conflict","code":409}`,
	"webhook 410":          webhookSaysNo + `"reason":"Gone","code":410}`,
	"webhook 422":          webhookSaysNo + `"reason":"Invalid","code":422}`,
	"webhook 422, quoting": webhookDenied + `: the server rejected our request due to an error in our request","code":422}`,
	"webhook 429":          webhookSaysNo + `"reason":"TooManyRequests","code":429}`,
	"webhook 500":          webhookSaysNo + `"code":500}`,
	"policy 403":           policyDenied + `"reason":"Forbidden","code":403}`,
	"policy 422":           policyDenied + `"reason":"Invalid","code":422}`,
	"policy 413":           policyDenied + `"reason":"RequestEntityTooLarge","code":413}`,

	"failed test": `{"status":"Failure","message":"the server rejected our request due to an error in our request",` +
		`"reason":"Invalid","details":{},"code":422}`,
	"gone": `{"status":"Failure","message":"deployments.apps \"d\" not found","reason":"NotFound",` + ofDeployment + `"code":404}`,
	"conflict": `{"status":"Failure","message":"Operation cannot be fulfilled on deployments.apps \"d\": ` +
		`the object has been modified; please apply your changes to the latest version and try again",` +
		`"reason":"Conflict",` + ofDeployment + `"code":409}`,
	"invalid": `{"status":"Failure","message":"Deployment.apps \"d\" is invalid: ` +
		`spec.replicas: Invalid value: -1: must be greater than or equal to 0","reason":"Invalid",` +
		`"details":{"name":"d","group":"apps","kind":"Deployment","causes":[{"reason":"FieldValueInvalid",` +
		`"message":"Invalid value: -1: must be greater than or equal to 0","field":"spec.replicas"}]},"code":422}`,
	"no right": `{"status":"Failure","message":"deployments.apps \"d\" is forbidden: ` +
		`User \"u\" cannot patch resource \"deployments\" in API group \"apps\" in the namespace \"n\"",` +
		`"reason":"Forbidden",` + ofDeployment + `"code":403}`,
	"namespace going": `{"status":"Failure","message":"pods \"d\" is forbidden: ` +
		`unable to create new content in namespace n because it is being terminated","reason":"Forbidden",` +
		`"details":{"name":"d","kind":"pods","causes":[{"reason":"NamespaceTerminating",` +
		`"message":"namespace n is being terminated","field":"metadata.namespace"}]},"code":403}`,
}

func answer(t *testing.T, name string) error {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal([]byte(answers[name]), &status); err != nil || status.Code == 0 {
		t.Fatalf("answer %q: %v", name, err)
	}
	return fmt.Errorf("patch deployment n/d: %w", &apierrors.StatusError{ErrStatus: status})
}

func TestDenial(t *testing.T) {
	type is struct{ denial, refusal, outdated bool }
	want := map[string]is{
		"failed test": {outdated: true}, "gone": {outdated: true}, "conflict": {outdated: true},
		"invalid": {refusal: true}, "no right": {refusal: true}, "namespace going": {},
	}
	for name := range answers {
		t.Run(name, func(t *testing.T) {
			err := answer(t, name)
			wanted, ok := want[name]
			if !ok {
				wanted = is{denial: true, refusal: true}
			}
			_, denied := denial(err)
			_, refused := Refusal(err)
			if got := (is{denied, refused, Outdated(err)}); got != wanted {
				t.Errorf("%v: %+v, want %+v", err, got, wanted)
			}
			if denied && IgnoreGone(err) == nil {
				t.Error("a denial is taken for an object that is gone")
			}
			// A denied write is never retried every 100 ms.
			result, left := Settle(t.Context(), ctrl.Result{}, err)
			if again := left == nil; again != wanted.outdated || again && result.RequeueAfter != ConflictRetry {
				t.Errorf("settled as %+v, %v", result, left)
			}
		})
	}
	if IgnoreGone(answer(t, "gone")) != nil || Outdated(errors.New("connection refused")) {
		t.Error("other errors are classified wrongly")
	}
}

func TestDenials(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(time.Unix(1e9, 0))
	d := newDenials(clock)
	w := &workload.Workload{UID: "u"}
	denied, calls := answer(t, "webhook 404"), 0
	write := func() error { calls++; return denied }

	var tried []time.Duration
	for second := range 400 {
		clock.SetTime(time.Unix(1e9+int64(second), 0))
		before := calls
		err := d.try(w, ActBlock, write)
		got := (*DeniedError)(nil)
		if !errors.As(err, &got) || !errors.Is(err, denied) {
			t.Fatalf("at %ds: %v, want a denial", second, err)
		}
		if got.first != (second == 0) {
			t.Errorf("at %ds: reported %t", second, got.first)
		}
		if got.again <= 0 || got.again > maxDenialRetry {
			t.Errorf("at %ds: again in %s", second, got.again)
		}
		if calls > before {
			tried = append(tried, time.Duration(second)*time.Second)
		}
	}
	if want := "[0s 1s 2s 4s 8s 16s 32s 1m4s 2m8s 4m16s]"; fmt.Sprint(tried) != want {
		t.Errorf("tried at %v, want %s", tried, want)
	}
	before := calls
	for name, other := range map[string]error{
		"another act":      d.try(w, ActRollBack, func() error { calls++; return nil }),
		"another workload": d.try(&workload.Workload{UID: "v"}, ActBlock, func() error { calls++; return nil }),
		"another error":    d.try(&workload.Workload{UID: "x"}, ActBlock, func() error { calls++; return errors.New("down") }),
	} {
		if e := (*DeniedError)(nil); errors.As(other, &e) {
			t.Errorf("%s is not tried: %v", name, other)
		}
	}
	if calls != before+3 {
		t.Errorf("%d calls, want 3", calls-before)
	}
	clock.SetTime(time.Unix(1e9+1000, 0))
	if err := d.try(w, ActBlock, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	err := d.try(w, ActBlock, write)
	if got := (*DeniedError)(nil); !errors.As(err, &got) || !got.first || got.again != firstDenialRetry {
		t.Errorf("after it was accepted: %v, want a first denial", err)
	}
}
