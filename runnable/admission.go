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

// AdmissionNote logs at the start of each replica that a configured admission check denies nothing
// with an open-source server, which answers pass to each question, at the end of the time limit.
type AdmissionNote struct {
	// Scene of the check; empty if none is configured.
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

// Start implements manager.Runnable. It ends at once. The manager continues if a read fails.
func (n *AdmissionNote) Start(ctx context.Context) error {
	set, err := n.InForce(ctx, n.Namespace)
	if err != nil {
		n.Log.Error(err, "read whether the admission check is on")
		return nil
	}
	switch {
	case n.Scene != "":
		n.Log.Info("the admission check delays each release and denies none, with a stock AlterShield Server",
			"why", "the server answers pass, whatever its rules say, at the end of the time limit",
			"scene", n.Scene, "on", set.AdmissionCheck, "limit", set.AdmissionTimeout.String())
	case set.AdmissionCheck:
		n.Log.Info("the setting admission is on and does nothing", "why", "it needs --altershield-url and --altershield-admission-scene")
	}
	return nil
}
