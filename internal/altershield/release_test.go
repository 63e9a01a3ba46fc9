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

package altershield

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOrderOfARelease(t *testing.T) {
	r := Release{
		Title: "Release v of ns/web", Namespace: "ns", Name: "web", App: "shop", User: "jane", Phase: PhaseProd, TargetType: "K8S",
		Parameters: map[string]string{"version": "v"},
	}
	want := Order{
		ChangeTitle: "Release v of ns/web", Creator: "jane", ChangeScenarioCode: ScenarioDefault, ChangePhases: []string{PhaseProd},
		ChangeContents: []ChangeContent{{ContentType: ContentType{TypeName: "K8S"}, InstanceName: "ns/web"}},
		ChangeApps:     []string{"shop"}, ChangeParamJSON: `{"version":"v"}`,
	}
	if diff := cmp.Diff(want, r.Order()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	r.Title, r.User = strings.Repeat("t", 2*MaxChangeTitle), strings.Repeat("u", 1000)
	if o := r.Order(); len(o.ChangeTitle) > MaxChangeTitle || o.Creator != CutUser(r.User) {
		t.Errorf("title of %d bytes, creator %q", len(o.ChangeTitle), o.Creator)
	}
	if got := JSONText(make(chan int)); got != "{}" {
		t.Errorf("what cannot be encoded is %s", got)
	}
}
