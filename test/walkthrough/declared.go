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
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// route is the VirtualService of hack/demo/mesh.yaml, in the namespace mesh.
var route = Workload{kind: "VirtualService", apiVersion: "networking.istio.io/v1", name: "pay"}

const (
	mesh = "mesh"
	// Routes is the name of the ChangeKind of VirtualServices, and of their CustomResourceDefinition.
	Routes = "virtualservices.networking.istio.io"
)

// Declared is the story of a VirtualService of Istio that a ChangeKind declares. definition is the path of the
// CustomResourceDefinition.
func Declared(definition string) Story {
	to := func(subset string) Act {
		return kubectl("patch virtualservice pay --type merge -p",
			`{"spec":{"http":[{"route":[{"destination":{"host":"pay","subset":"`+subset+`"}}]}]}}`)
	}
	subset := kubectl("get virtualservice pay -o", `jsonpath={.spec.http[0].route[0].destination.subset}{"\n"}`)
	return Story{route, mesh, []Step{
		{"A kind without pods: a VirtualService of Istio is declared", []Act{
			{Note: "The CustomResourceDefinition is Istio's own. Its controllers do not run here:"},
			kubectl("apply --server-side -f " + definition),
			see("the kind to be served", (*scene).served),
			kubectl("apply -f hack/demo/mesh.yaml"),
			kubectl("apply -f config/kinds/istio/virtualservice.yaml"),
			{Note: "A change has to stay complete before its last checks: 60 seconds by default, here 2:"},
			kubectl("patch changekind "+Routes+" --type merge -p", `{"spec":{"rollout":{"settle":"2s"}}}`),
			kubectl("wait --for=condition=Ready changekind/" + Routes + " --timeout=1m"),
			kubectl("get changekinds").prints(Routes, "True"),
			kubectl("wait --for=condition=Accepted defensepolicy/routes --timeout=1m"),
			to("v2"),
			see("the change to succeed", (*scene).succeeded),
			list.prints("pay--x--virtualservice-", "Success"),
		}},
		{"A kind without pods: a bad change is suspended, the next one is denied, and the bad one is undone", []Act{
			to("v0"),
			see("the change to be suspended and the VirtualService blocked", (*scene).blocked),
			list.prints("Suspend", "Success"),
			see("the event", reports(v1alpha1.EventReleaseSuspended)),
			eventsOf("pay", v1alpha1.EventReleaseSuspended).prints("mesh/routes/subsets", "a subset that no DestinationRule has"),
			to("v3").denied().prints("denied the request: virtualservice pay is suspended", "a subset that no DestinationRule has"),
			kubectl("annotate virtualservice pay " + v1alpha1.RollbackToAnnotation + "=last-success"),
			see("the VirtualService to be back, and verified", (*scene).restored),
			subset.prints("v2"),
			list.prints("Rollback", "Success"),
		}},
	}}
}

// served reports whether the API server serves the kind of the object, which may not exist yet.
func (s *scene) served(ctx context.Context) (string, bool, error) {
	_, err := s.workload(ctx)
	if meta.IsNoMatchError(err) {
		return "not yet", false, nil
	}
	return "it is", true, client.IgnoreNotFound(err)
}

// blocked reports whether the newest release is suspended, and its object is blocked.
func (s *scene) blocked(ctx context.Context) (string, bool, error) {
	w, releases, err := s.see(ctx)
	if err != nil {
		return "", false, err
	}
	state, label := stateOf(releases[s.current(w)]), w.GetLabels()[v1alpha1.SuspendLabel]
	return fmt.Sprintf("%s, blocked: %t", state, label != ""), state == "Suspend" && label != "", nil
}
