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

package runnable

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/traas-stack/altershield-operator/internal/settings"
)

func TestAdmissionNote(t *testing.T) {
	for name, test := range map[string]struct {
		scene string
		on    bool
		err   error
		want  []string
	}{
		"neither":            {},
		"a scene":            {scene: "g1", want: []string{"denies none", `"scene"="g1"`, `"on"=false`}},
		"a scene, and on":    {scene: "g1", on: true, want: []string{"denies none", `"on"=true`, `"limit"="2s"`}},
		"on without a scene": {on: true, want: []string{"does nothing", "--altershield-admission-scene"}},
		"it cannot be read":  {scene: "g1", err: errors.New("no cache"), want: []string{"no cache"}},
	} {
		t.Run(name, func(t *testing.T) {
			var said []string
			n := &AdmissionNote{
				Scene: test.scene, Namespace: ours, Log: funcr.New(func(_, args string) { said = append(said, args) }, funcr.Options{}),
				InForce: func(context.Context, string) (settings.InForce, error) {
					set := settings.InForce{Settings: settings.Default()}
					set.AdmissionCheck, set.AdmissionTimeout = test.on, 2*time.Second
					return set, test.err
				},
			}
			if err := n.Start(t.Context()); err != nil || n.NeedLeaderElection() {
				t.Errorf("started: %v, elected: %t", err, n.NeedLeaderElection())
			}
			all := strings.Join(said, "\n")
			if (all == "") != (len(test.want) == 0) || len(said) > 1 {
				t.Errorf("said %q", all)
			}
			for _, want := range test.want {
				if !strings.Contains(all, want) {
					t.Errorf("%q does not say %q", all, want)
				}
			}
		})
	}
}
