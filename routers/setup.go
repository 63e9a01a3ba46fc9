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

package routers

import (
	"errors"

	ctrl "sigs.k8s.io/controller-runtime"
)

// off is the address that turns the callback address off.
const off = "0"

// SetupWithManager serves the callback address on every replica of the manager.
func SetupWithManager(mgr ctrl.Manager, o Options) error {
	if o.Address == off {
		return nil
	}
	o.Recorder = &Verdicts{View: o.View, Client: mgr.GetClient(), Clock: o.Clock}
	s, err := New(o)
	if err != nil {
		return err
	}
	return errors.Join(mgr.Add(s), mgr.AddReadyzCheck("callbacks", s.StartedChecker()))
}
