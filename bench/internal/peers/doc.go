// Package peers starts the measured programs: the gateway on each engine, and the programs it is compared with, each
// with its best settings. The configurations are the templates in conf/.
package peers
