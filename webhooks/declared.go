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
	"fmt"
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/intercept"
	"github.com/traas-stack/altershield-operator/internal/network"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// declaredPath is the pattern of [declared.Kind.PathOf], without the last segment. A server takes no new paths while it runs,
// but kinds are declared and dropped.
const declaredPath = "/declared/{name}/{generation}/"

// declaredHook serves one webhook of all declared kinds.
type declaredHook struct {
	kinds      *workload.Registry
	does       string
	newHandler func(workload.Kind) admission.Handler
	// noise limits log lines that forged requests can cause at will.
	noise *network.Log
}

// ServeHTTP implements [http.Handler].
func (h *declaredHook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	unknown := unknownKind{declaredHook: h, name: r.PathValue("name"), generation: r.PathValue("generation")}
	answers := admission.Handler(unknown)
	for _, kind := range h.kinds.Kinds() {
		if d, ok := kind.(hub.Declared); ok && d.Declaration().PathOf(h.does) == r.URL.Path {
			answers = h.newHandler(kind)
		}
	}
	(&admission.Webhook{Handler: answers}).ServeHTTP(w, r)
}

// unknownKind answers requests about another generation of a ChangeKind than this replica has, or about a ChangeKind that it
// does not have: versions of another declaration are not comparable. It lasts until the caches of this replica and of the API
// server have the same generation, usually about a second.
type unknownKind struct {
	*declaredHook
	name, generation string
}

// Handle implements [admission.Handler]. Only the block is kept, because it has to hold while the operator is down, too.
func (u unknownKind) Handle(_ context.Context, req admission.Request) admission.Response {
	u.noise.Info("a webhook was called for a generation of a ChangeKind that this replica does not have", "webhook", u.does,
		"changekind", u.name, "generation", u.generation, "namespace", req.Namespace, "name", req.Name)
	if u.does != intercept.Validate {
		return admission.Allowed("")
	}
	return admission.Errored(http.StatusServiceUnavailable, fmt.Errorf("the releases of %s %s are blocked, and this replica of the operator "+
		"does not have generation %s of the ChangeKind %s yet; retry in a few seconds", req.Resource.Resource, req.Name, u.generation, u.name))
}
