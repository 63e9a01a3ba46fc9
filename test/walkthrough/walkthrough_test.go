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

package walkthrough

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// A player fails if a step does not hold.
func TestPlay(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	batch := wrappers.MakeChangePod("shop", FirstRelease+"--x--1").Pods("web-1").Obj()
	refused := errors.New("exit status 1")
	never := func(*scene, context.Context) (string, bool, error) { return "not yet", false, nil }
	for name, test := range map[string]struct {
		act      Act
		out      string
		err      error
		restless bool
		want     string // the error; empty is none
		typed    string // checked where it is not empty
	}{
		"a command": {act: kubectl("get pods").prints("web"), out: "web-1 Running"},
		"with words filled in": {act: kubectl("-n NAMESPACE get pod POD").prints("POD"), out: "web-1",
			typed: "-n shop get pod web-1"},
		"prints something else":     {act: kubectl("get pods").prints("POD"), out: "none", want: `does not print "web-1", but: none`},
		"fails":                     {act: kubectl("get pods"), out: "no", err: refused, want: "exit status 1: no"},
		"denied":                    {act: another.denied().prints(Denial), out: "Error: " + Denial, err: refused},
		"denied for another reason": {act: another.denied().prints(Denial), out: "no such host", err: refused, want: "does not print"},
		"not denied":                {act: another.denied(), out: "patched", want: "was not denied: patched"},
		"seen":                      {act: see("it", func(*scene, context.Context) (string, bool, error) { return "", true, nil })},
		"not seen in time":          {act: see("it", never).within(time.Millisecond), want: `waited for it, at last "not yet"`},
		"left out beside a kill":    {act: see("it", never).within(time.Millisecond).calm(), restless: true},
		"a batch that is not there yet": {act: see("the release", (*scene).verified).within(time.Millisecond),
			want: "not there, 0 of 5 batches done"},
		"done":     {act: Act{Do: func(context.Context) error { return nil }}},
		"not done": {act: Act{Do: func(context.Context) error { return refused }}, want: "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			var typed string
			p := &Player{
				Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(batch.DeepCopy()).Build(), Namespace: "shop", Restless: test.restless,
				Kubectl: func(_ context.Context, args ...string) (string, error) {
					typed = strings.Join(args, " ")
					return test.out, test.err
				},
			}
			err := p.Play(t.Context(), Step{Title: "one", Acts: []Act{test.act}})
			if (err == nil) != (test.want == "") || (err != nil && !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if test.typed != "" && typed != test.typed {
				t.Errorf("typed %q, want %q", typed, test.typed)
			}
		})
	}
}

// Each step types commands and checks their results, and its files exist.
func TestSteps(t *testing.T) {
	app := &App{Policy: "hack/demo/shop.yaml", Address: netip.MustParseAddrPort("192.0.2.1:80")}
	measured := Measured(&Metrics{Endpoints: "hack/demo/pay.yaml"})
	stories := slices.Concat(Policies(app).Steps, measured.Steps, Declared("hack/demo/mesh.yaml").Steps, Verified(nil).Steps,
		Partition(nil).Steps, Waves(nil).Steps)
	for _, step := range slices.Concat(Steps(), stories, Observed(), []Step{Halted, Crashes}) {
		typed, checked := 0, 0
		for _, act := range step.Acts {
			for _, arg := range act.Kubectl {
				if !strings.HasPrefix(arg, "config/") && !strings.HasPrefix(arg, "hack/") {
					continue
				}
				if _, err := os.Stat(filepath.Join("..", "..", arg)); err != nil {
					t.Errorf("step %q: %v", step.Title, err)
				}
			}
			if len(act.Kubectl) > 0 {
				typed++
			}
			if len(act.Prints) > 0 || act.Sight != nil {
				checked++
			}
		}
		if typed == 0 || checked == 0 {
			t.Errorf("step %q types %d commands and checks %d", step.Title, typed, checked)
		}
	}
	if n := len(NeverStarts.Acts); n+2 != len(Sooner(NeverStarts).Acts) || len(NeverStarts.Acts) != n {
		t.Error("Sooner changes the step itself")
	}
}

func TestTyped(t *testing.T) {
	got := kubectl("-n NAMESPACE patch -p", `{"a":"POD"}`).Typed(Namespace, "shop", FailedPod, "web-1")
	if want := `kubectl -n shop patch -p '{"a":"web-1"}'`; got != want {
		t.Errorf("typed %s, want %s", got, want)
	}
}

// The names of releases begin as the operator names them.
func TestPrefix(t *testing.T) {
	for want, w := range map[string]Workload{
		"sleep--x--": deployment, "db--x--statefulset-": db, "agent--x--daemonset-": agent, "pay--x--virtualservice-d3f79-": route,
	} {
		if got := w.prefix(); got != want {
			t.Errorf("prefix %s, want %s", got, want)
		}
	}
}
