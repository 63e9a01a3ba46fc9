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
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestLeaving: only a pod that is being deleted closes connections with its answers.
func TestLeaving(t *testing.T) {
	reader := fake.NewClientBuilder().WithObjects(
		wrappers.MakePod("system", "ending").Deleted(time.Now()).Finalizers("example.org/test").Obj(),
		wrappers.MakePod("system", "running").Obj(),
	).Build()
	for name, want := range map[string]bool{"ending": true, "running": false, "unknown": false, "": false} {
		t.Run(name, func(t *testing.T) {
			ending := isEnding(reader, types.NamespacedName{Namespace: "system", Name: name})
			next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
			server := httptest.NewServer(leaving(ending, next))
			defer server.Close()
			response, err := server.Client().Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			if err := response.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != http.StatusAccepted || response.Close != want {
				t.Errorf("status %d, connection closed: %t, want %t", response.StatusCode, response.Close, want)
			}
		})
	}
}
