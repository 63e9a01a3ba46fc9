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

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/traas-stack/altershield-operator/internal/settings"
)

// AdmissionNote says at the start of each replica what the admission check is worth,
// where somebody has prepared it: an open-source server answers every question with
// pass, and only when its time is over.
type AdmissionNote struct {
	// Scene of the check; empty where it cannot be made.
	Scene string
	// InForce returns the settings in force in a namespace.
	InForce func(ctx context.Context, namespace string) (settings.InForce, error)
	// Namespace of the operator.
	Namespace string
	Log       logr.Logger
}

var (
	_ manager.Runnable               = &AdmissionNote{}
	_ manager.LeaderElectionRunnable = &AdmissionNote{}
)

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (n *AdmissionNote) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable. It ends at once; what it cannot read is no
// reason for the manager to end.
func (n *AdmissionNote) Start(ctx context.Context) error {
	set, err := n.InForce(ctx, n.Namespace)
	if err != nil {
		n.Log.Error(err, "read whether the admission check is on")
		return nil
	}
	switch {
	case n.Scene != "":
		n.Log.Info("the admission check delays each release and denies none, with a stock AlterShield Server",
			"why", "it answers pass, whatever its rules say, and only after the whole time it was given",
			"scene", n.Scene, "on", set.AdmissionCheck, "limit", set.AdmissionTimeout.String())
	case set.AdmissionCheck:
		n.Log.Info("the setting admission is on and does nothing", "why", "it needs --altershield-url and --altershield-admission-scene")
	}
	return nil
}
